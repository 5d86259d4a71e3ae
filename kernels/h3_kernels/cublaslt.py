"""Products by cuBLASLt on one device: y = alpha * x w^T, row-major, alpha on the device, by a schedule that is known.

    x [M, K], w [N, K], both E2M1 in pairs, E4M3 or BF16         y [M, N] = alpha * (x w^T summed in FP32), rounded once
    scales     NVFP4: E4M3 for every 16 values along K, in tiles of 128 x 4; E4M3: one fp32 a matrix; BF16: none
    alpha      fp32 of one element, read by the device when it multiplies: the host never waits for it

cuBLAS counts by columns, so its A is w (transposed), its B is x (not), its D is y: rows N, columns M. M may be any;
what the library takes of K and N, it says itself.

`CublasLt` holds a handle, a workspace and a `Plan` for each product that was asked for: descriptors, layouts and an
algorithm, made once. An algorithm is what the library's heuristic names first, or a given `Schedule`, which is taken
only if the library says that it has it and that it runs without a larger workspace: as it is given, else with what more
the heuristic sets for one of these very numbers (on an H200 algorithm 66 runs only so). A call with a plan asks the
library for nothing but the product, so a CUDA graph may hold it; make the plan first, though: cuBLAS 13.5.1 to 13.6
ends the capture of a blocking stream if its heuristic is asked (PyTorch's are others). One thread and one stream at a
time: the workspace is shared.

Known of cuBLAS (release notes of CUDA 13.2 to 13.4): alpha may be read before the kernels ahead of it have ended, if
those let the next one start early (programmatic dependent launch); PyTorch's don't. On SM 10.3 NVFP4 products by
algorithm 66 with stages 38 may be wrong: `AVOIDED` passes them over. Fed and read by `backends.linear`.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import byref, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import torch

from h3_kernels import cublaslt_api as api
from h3_kernels.cublaslt_api import Algorithm, CublasLtError, CublasLtNotSupported, Heuristic, Library

WORKSPACE_BYTES: Final = 32 << 20
"""Held on each device from the first plan on that takes one. comfy-kitchen offers as much, so the heuristic answers
both alike."""
CANDIDATES: Final = 8
"""That the heuristic is asked for; all but the first are for where that one is to be avoided."""
NAMED: Final = 64
"""Among so many a given schedule is looked for."""
PLANS: Final = 256
"""Kept; the one used longest ago is given up first. A clip's shape takes four."""
RESULTS: Final[Mapping[torch.dtype, int]] = MappingProxyType(
    {torch.bfloat16: api.CUDA_R_16BF, torch.float16: api.CUDA_R_16F, torch.float32: api.CUDA_R_32F}
)
AVOIDED: Final[Mapping[tuple[int, int], frozenset[tuple[int, int]]]] = MappingProxyType(
    {(10, 3): frozenset({(66, api.STAGES_768XAUTO)})}
)
"""By capability: algorithms and stages that may be wrong (release notes of CUDA 13.4, cuBLAS, known issues)."""


class ScheduleUnfit(Exception):
    """Why a given schedule isn't to be had for a product."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Both of a product. type: cudaDataType_t. per_byte: values. scale_mode: of their scales; None for none."""

    type: int
    per_byte: int
    bytes_each: int
    scale_mode: int | None


NVFP4: Final = Operands(api.CUDA_R_4F_E2M1, 2, 1, api.VEC16_UE4M3)
FP8: Final = Operands(api.CUDA_R_8F_E4M3, 1, 1, api.SCALAR_32F)
BF16: Final = Operands(api.CUDA_R_16BF, 1, 2, None)


@dataclass(frozen=True, slots=True)
class Product:
    """y [m, n] = x [m, k] w [n, k]^T. result: dtype of y."""

    m: int
    n: int
    k: int
    operands: Operands = NVFP4
    result: torch.dtype = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a product runs, in cuBLAS's numbers. workspace: bytes, at most."""

    algorithm: int
    tile: int
    stages: int
    split_k: int
    workspace: int


class Plan:
    """Descriptors, layouts and an algorithm for one product. CublasLtNotSupported if the library has none,
    ScheduleUnfit if the given schedule isn't to be had."""

    def __init__(self, lt: CublasLt, product: Product, schedule: Schedule | None = None) -> None:
        self._lt, self.product = lt, product
        self._made: list[tuple[str, c_void_p]] = []
        try:
            self._descriptor = self._described()
            form = product.operands.type
            self._w = self._layout(form, product.k, product.n, product.k)
            self._x = self._layout(form, product.k, product.m, product.k)
            self._y = self._layout(RESULTS[product.result], product.n, product.m, product.n)
            self._algorithm, self.workspace = self._found() if schedule is None else self._pinned(schedule)
            self.chosen = self._told(self._algorithm, self.workspace)
            self._chosen, self._scales = byref(self._algorithm), (c_uint64(), c_uint64())
            attributes = api.DESC_A_SCALE_POINTER, api.DESC_B_SCALE_POINTER
            self._scaling = [
                (self._descriptor, attribute, byref(address), ctypes.sizeof(address))
                for attribute, address in zip(attributes, self._scales, strict=True)
            ]
        except BaseException:
            self.close()
            raise

    def run(self, w: int, w_scale: int, x: int, x_scale: int, alpha: int, y: int, stream: int) -> None:
        """Addresses on the device; scales 0 where there are none."""
        lt, call = self._lt, self._lt.library.call
        if self.product.operands.scale_mode is not None:
            self._scales[0].value, self._scales[1].value = w_scale, x_scale
            for arguments in self._scaling:
                call("cublasLtMatmulDescSetAttribute", *arguments)
        call(
            "cublasLtMatmul",
            *(lt.handle, self._descriptor, alpha, w, self._w, x, self._x),
            *(lt.zero_address, y, self._y, y, self._y),
            *(self._chosen, lt.workspace_address if self.workspace else None, self.workspace, stream),
        )

    def close(self) -> None:
        for name, pointer in self._made:
            self._lt.library.functions[name](pointer)
        self._made = []

    def _described(self) -> c_void_p:
        made = self._create("cublasLtMatmulDesc", api.COMPUTE_32F, api.CUDA_R_32F)
        self._descriptor = made
        settings = {
            api.DESC_POINTER_MODE: api.POINTER_MODE_DEVICE,
            api.DESC_TRANSA: api.OP_T,
            api.DESC_TRANSB: api.OP_N,
            api.DESC_EPILOGUE: api.EPILOGUE_DEFAULT,
        }
        mode = self.product.operands.scale_mode
        if mode is not None:
            settings |= {api.DESC_A_SCALE_MODE: mode, api.DESC_B_SCALE_MODE: mode}
            # Nothing is read of these; the heuristic wants to see that there will be scales.
            for attribute in (api.DESC_A_SCALE_POINTER, api.DESC_B_SCALE_POINTER):
                self._describe(attribute, c_uint64(self._lt.zero_address))
        for attribute, value in settings.items():
            self._describe(attribute, c_int32(value))
        return made

    def _describe(self, attribute: int, value: Any) -> None:
        self._lt.library.call(
            "cublasLtMatmulDescSetAttribute", self._descriptor, attribute, byref(value), ctypes.sizeof(value)
        )

    def _layout(self, form: int, rows: int, columns: int, leading: int) -> c_void_p:
        return self._create("cublasLtMatrixLayout", form, rows, columns, leading)

    def _create(self, kind: str, *arguments: int) -> c_void_p:
        made = c_void_p()
        self._lt.library.call(f"{kind}Create", byref(made), *arguments)
        self._made.append((f"{kind}Destroy", made))
        return made

    def _found(self) -> tuple[Algorithm, int]:
        """What the heuristic names first of what isn't to be avoided, and the workspace that it takes."""
        for algorithm, workspace in self._candidates(WORKSPACE_BYTES, CANDIDATES):
            if self._kind(algorithm) not in self._lt.avoided:
                return algorithm, workspace
        raise CublasLtNotSupported("cublasLtMatmulAlgoGetHeuristic", api.NOT_SUPPORTED)

    def _candidates(self, workspace: int, most: int) -> list[tuple[Algorithm, int]]:
        """Best first, with the workspace that each takes."""
        results, count = (Heuristic * most)(), c_int(0)
        with self._lt.preference(workspace) as preference:
            self._lt.library.call(
                "cublasLtMatmulAlgoGetHeuristic",
                *(self._lt.handle, self._descriptor, self._w, self._x, self._y, self._y),
                *(preference, most, results, byref(count)),
            )
        able = (result for result in results[: count.value] if result.state == api.SUCCESS)
        return [(Algorithm.from_buffer_copy(each.algorithm), int(each.workspace)) for each in able]

    def _pinned(self, schedule: Schedule) -> tuple[Algorithm, int]:
        try:
            return self._built(schedule)
        except ScheduleUnfit as unfit:
            found = self._named(schedule)
            if found is None:
                raise ScheduleUnfit(f"{unfit}; nor does the heuristic name it") from unfit
            return found, self._checked(found, schedule)

    def _named(self, schedule: Schedule) -> Algorithm | None:
        """The first candidate of these numbers."""
        try:
            candidates = self._candidates(schedule.workspace, NAMED)
        except CublasLtError:
            return None
        wanted = replace(schedule, workspace=0)
        return next((each for each, _ in candidates if replace(self._told(each), workspace=0) == wanted), None)

    def _built(self, schedule: Schedule) -> tuple[Algorithm, int]:
        """Of these numbers alone."""
        algorithm = self._initialised(schedule.algorithm)
        for capability, wanted, what in (
            (api.CAP_TILE_IDS, schedule.tile, "tile"),
            (api.CAP_STAGES_IDS, schedule.stages, "stages"),
        ):
            if wanted not in self._capable(algorithm, capability):
                raise ScheduleUnfit(f"algorithm {schedule.algorithm} has no {what} {wanted} here")
        if not self._capable(algorithm, api.CAP_POINTER_MODE_MASK)[0] & api.POINTER_MODE_MASK_DEVICE:
            raise ScheduleUnfit(f"algorithm {schedule.algorithm} reads no alpha from the device")
        for attribute, value in (
            (api.CONFIG_TILE_ID, c_uint32(schedule.tile)),
            (api.CONFIG_STAGES_ID, c_uint32(schedule.stages)),
            (api.CONFIG_SPLITK_NUM, c_int32(schedule.split_k)),
            (api.CONFIG_REDUCTION_SCHEME, c_uint32(api.REDUCTION_SCHEME_NONE)),
        ):
            self._unless("cublasLtMatmulAlgoConfigSetAttribute", byref(algorithm), attribute, byref(value), 4)
        return algorithm, self._checked(algorithm, schedule)

    def _initialised(self, number: int) -> Algorithm:
        form, result, made = self.product.operands.type, RESULTS[self.product.result], Algorithm()
        types = (api.COMPUTE_32F, api.CUDA_R_32F, form, form, result, result)
        self._unless("cublasLtMatmulAlgoInit", self._lt.handle, *types, number, byref(made))
        return made

    def _checked(self, algorithm: Algorithm, schedule: Schedule) -> int:
        result = Heuristic()
        self._unless(
            "cublasLtMatmulAlgoCheck",
            *(self._lt.handle, self._descriptor, self._w, self._x, self._y, self._y),
            *(byref(algorithm), byref(result)),
        )
        if result.workspace > schedule.workspace:
            raise ScheduleUnfit(f"it takes a workspace of {result.workspace} bytes, not {schedule.workspace}")
        return int(result.workspace)

    def _unless(self, name: str, *arguments: Any) -> None:
        """Whatever the library has against a schedule is a reason to go without, and no fault."""
        try:
            self._lt.library.call(name, *arguments)
        except CublasLtError as error:
            raise ScheduleUnfit(str(error)) from error

    def _capable(self, algorithm: Algorithm, capability: int) -> tuple[int, ...]:
        size, name = c_size_t(0), "cublasLtMatmulAlgoCapGetAttribute"
        self._unless(name, byref(algorithm), capability, None, 0, byref(size))
        if not size.value:
            return ()
        values = (c_uint32 * (size.value // 4))()
        self._unless(name, byref(algorithm), capability, values, size.value, byref(size))
        return tuple(values)

    def _configured(self, algorithm: Algorithm, attribute: int) -> int:
        value, written = c_int32(0), c_size_t(0)
        self._lt.library.call(
            "cublasLtMatmulAlgoConfigGetAttribute", byref(algorithm), attribute, byref(value), 4, byref(written)
        )
        return value.value

    def _kind(self, algorithm: Algorithm) -> tuple[int, int]:
        """Number and stages, as `AVOIDED` has them."""
        return self._configured(algorithm, api.CONFIG_ID), self._configured(algorithm, api.CONFIG_STAGES_ID)

    def _told(self, algorithm: Algorithm, workspace: int = 0) -> Schedule:
        """As the library has it."""
        number, stages = self._kind(algorithm)
        tile, split_k = (self._configured(algorithm, each) for each in (api.CONFIG_TILE_ID, api.CONFIG_SPLITK_NUM))
        return Schedule(number, tile, stages, split_k, workspace)


class CublasLt:
    """cuBLASLt on `device`. library: the one in this process, if not given. avoided: (algorithm, stages) that the
    heuristic's answer is passed over for.

    LookupError if there is no library; CublasLtError if it gives no handle.
    """

    def __init__(
        self,
        device: torch.device,
        library: Library | None = None,
        avoided: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        found = library or api.loaded()
        if found is None:
            raise LookupError("libcublasLt is not in this process: PyTorch was built without CUDA")
        self.device, self.library, self.avoided = device, found, avoided
        self.handle = c_void_p()
        self._plans: OrderedDict[tuple[Product, Schedule | None], Plan] = OrderedDict()
        self._workspace: torch.Tensor | None = None
        self._zero = torch.zeros(4, device=device)
        self.zero_address = self._zero.data_ptr()
        with _current(device):
            found.call("cublasLtCreate", byref(self.handle))

    @property
    def workspace_address(self) -> int | None:
        """None until a plan takes one."""
        return None if self._workspace is None else self._workspace.data_ptr()

    def plan(self, product: Product, schedule: Schedule | None = None) -> Plan:
        """The one that there is, or one made now; see `Plan` for what it raises."""
        key = (product, schedule)
        found = self._plans.get(key)
        if found is None:
            with _current(self.device):
                found = self._plans[key] = Plan(self, product, schedule)
            if found.workspace and self._workspace is None:
                self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)[1].close()
        else:
            self._plans.move_to_end(key)
        return found

    def multiply(
        self,
        plan: Plan,
        x: torch.Tensor,
        w: torch.Tensor,
        alpha: torch.Tensor,
        *,
        x_scale: torch.Tensor | None = None,
        w_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x, w: contiguous, as `plan.product` has them, on this device; alpha fp32 of one element -> y. On PyTorch's
        current stream. ValueError for what doesn't fit; CublasLtError if the library refuses."""
        product = plan.product
        for name, matrix, rows in (("x", x, product.m), ("w", w, product.n)):
            _require_matrix(name, matrix, rows, product)
        if alpha.dtype is not torch.float32 or alpha.numel() != 1:
            raise ValueError(f"alpha: fp32 of one element, not {alpha.dtype} of {alpha.numel()}")
        y = torch.empty(product.m, product.n, dtype=product.result, device=x.device)
        scales = [0 if scale is None else scale.data_ptr() for scale in (w_scale, x_scale)]
        with _current(self.device):
            plan.run(
                *(w.data_ptr(), scales[0], x.data_ptr(), scales[1]),
                *(alpha.data_ptr(), y.data_ptr(), _stream(self.device)),
            )
        return y

    def algorithms(self, product: Product, most: int = 64) -> tuple[int, ...]:
        """All that the library lists for such operands on this device."""
        form, result = product.operands.type, RESULTS[product.result]
        numbers, count = (c_int * most)(), c_int(0)
        types = (api.COMPUTE_32F, api.CUDA_R_32F, form, form, result, result)
        with _current(self.device):
            self.library.call("cublasLtMatmulAlgoGetIds", self.handle, *types, most, numbers, byref(count))
        return tuple(numbers[: count.value])

    @contextmanager
    def preference(self, workspace: int) -> Iterator[c_void_p]:
        made, most = c_void_p(), c_size_t(workspace)
        self.library.call("cublasLtMatmulPreferenceCreate", byref(made))
        try:
            name = "cublasLtMatmulPreferenceSetAttribute"
            self.library.call(name, made, api.PREF_MAX_WORKSPACE_BYTES, byref(most), ctypes.sizeof(most))
            yield made
        finally:
            self.library.functions["cublasLtMatmulPreferenceDestroy"](made)

    def close(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        with _current(self.device):
            self.library.call("cublasLtDestroy", self.handle)


@cache
def on_device(device: torch.device) -> CublasLt:
    """The one of a device with an index ("cuda:0"), made at the first call; whoever loads a model calls it first."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    return CublasLt(device, avoided=AVOIDED.get(capability, frozenset()))


def nvfp4_shape(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype) -> Product:
    """Of codes [M, K/2] and [N, K/2]."""
    return Product(x.shape[0], w.shape[0], x.shape[1] * NVFP4.per_byte, NVFP4, dtype)


def _require_matrix(name: str, matrix: torch.Tensor, rows: int, product: Product) -> None:
    operands = product.operands
    columns = product.k // operands.per_byte
    if tuple(matrix.shape) != (rows, columns) or not matrix.is_contiguous():
        told = f"{list(matrix.shape)}{'' if matrix.is_contiguous() else ', not contiguous'}"
        raise ValueError(f"{name}: {told}; wanted [{rows}, {columns}], contiguous")
    if matrix.element_size() != operands.bytes_each:
        raise ValueError(f"{name}: {matrix.dtype} has {matrix.element_size()} bytes, not {operands.bytes_each}")


def _stream(device: torch.device) -> int:
    """PyTorch's current one; a library that isn't on a GPU has none."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _current(device: torch.device) -> AbstractContextManager[None]:
    """With `device` as CUDA's current one, which a handle belongs to and a stream must be of."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)
