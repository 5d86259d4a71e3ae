"""The adapters of `H3_LORA_DIR`, and the embedded model's own: listed once, read when a request first names one, kept
as long as there is room.

    list_adapters   every `*.safetensors` of the folder, its header judged against each loaded transformer
    AdapterShelf    what is resident, by the file's hash, at most `H3_LORA_CACHE_BYTES`; least recently used out first
    Taken           the adapters of one request, to be put beside the transformer's layers for its run

A file that can't be used is listed with the reason and keeps nobody from starting. What a request needs is read even if
it is above the limit, after everything else has been let go of; between requests the limit holds. Read by `resident`;
`estimating` asks from another thread what would be resident.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from h3runtime.backends.linear.adapted import Weighted
from h3runtime.checkpoint.expected import expectations
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.lora.binding import Target, bind, fit_of
from h3runtime.checkpoint.lora.contracts import contract_of
from h3runtime.checkpoint.lora.layout import layout_of
from h3runtime.checkpoint.lora.reading import Loaded, read_bound
from h3runtime.checkpoint.lora.report import REF2VA_PREFIX
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import TABLE, StoredAdapter, read_stored
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.core import AdapterFacts, AdapterFit, AdapterUse
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointChanged, CheckpointError, NumericalError, Offence, SettingsError, encodable
from h3runtime.settings import default_cache_dir, variable

SUFFIX = ".safetensors"
TABLE_DIFFERENCE = 1e-3
"""Of two AdaLN tables: more, and the adapter was made for another pruned transformer (dit-contract §7.4)."""
OnRead = Callable[[], None]
"""Called before each layer is read."""


def adapter_paths(folder: Path | None, own: Sequence[Path] = ()) -> dict[str, Path]:
    """By name as requests have it, in its order; one of the folder takes the place of an own one of its name.
    SettingsError for a folder that can't be listed."""
    found = {name_of(path): path for path in (*own, *_listed(folder))}
    return dict(sorted(found.items()))


def _listed(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX) and path.is_file())
    except OSError as error:
        field_name = variable("lora_dir")
        told = f"{folder} can't be listed: {(error.strerror or 'it is no folder').lower()}"
        raise SettingsError(f"{field_name}: {told}", [Offence(field_name, told, "a folder of adapters")]) from None


def list_adapters(
    folder: Path | None, transformers: Mapping[str, Dit], on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[AdapterFacts, ...]:
    """By name. SettingsError for a folder that can't be listed. on_bytes: told of what is hashed, for signs of life."""
    return _all_facts(adapter_paths(folder).values(), transformers, on_bytes)


def _all_facts(
    paths: Iterable[Path], transformers: Mapping[str, Dit], on_bytes: Callable[[int], None]
) -> tuple[AdapterFacts, ...]:
    targets = {partition: target_of(model) for partition, model in transformers.items()}
    return tuple(_facts(path, targets, on_bytes) for path in paths)


def target_of(model: Dit) -> Target:
    """A transformer's names and shapes, whatever form its weights are kept in."""
    with torch.device("meta"):
        plain = Dit(model.config)
    shapes = {name: tuple(tensor.shape) for name, tensor in plain.state_dict().items()}
    return Target(shapes, model.config.head_dim)


def name_of(path: Path) -> str:
    """As requests name it."""
    return encodable(path.name.removesuffix(SUFFIX))


def _facts(path: Path, targets: Mapping[str, Target], on_bytes: Callable[[int], None]) -> AdapterFacts:
    name, file = name_of(path), encodable(path.name)
    try:
        source = open_source(path)
    except CheckpointError as error:
        return AdapterFacts(name, file, "", 0, fault=error.message)
    try:
        stored = read_stored(source)
        scales = scales_of(stored)
        return AdapterFacts(
            name=name,
            file=file,
            sha256=_digest(path, source.parts[0].size, on_bytes),
            bytes=sum(entry.nbytes for entry in source.entries.values()),
            layout=layout_of(stored),
            rank=scales.rank,
            ranks=tuple(sorted({pair.rank for pair in stored.pairs.values()})),
            alpha=scales.alpha,
            ratio=scales.ratio,
            needs_alpha=bool(scales.missing),
            mixed_alpha=bool(scales.missing and scales.by_layer),
            fits={partition: _fit(stored, partition, target, path) for partition, target in targets.items()},
            contract=contract_of(stored, name),
        )
    except CheckpointError as error:
        return AdapterFacts(name, file, "", source.parts[0].size, fault=error.message)
    finally:
        source.close()


def _digest(path: Path, size: int, on_bytes: Callable[[int], None]) -> str:
    """CheckpointError where a SHA256SUMS beside the file, or its download, says another one."""
    found = sha256_of(path, default_cache_dir(), on_bytes)
    for said in expectations(path, size):
        if said.binding and said.digest != found:
            raise checkpoint_error(path, [Offence(FILE, f"has SHA-256 {found}, {said.source} says {said.digest}")])
    return found


def _fit(stored: StoredAdapter, partition: str, target: Target, path: Path) -> AdapterFit:
    """Both transformers have the same layers; what was saved as the one's can't mean the other."""
    if stored.prefix == REF2VA_PREFIX and partition != "ref2va":
        told = f"{path.name} was saved for the Ref2VA transformer: its names begin with {REF2VA_PREFIX}"
        return AdapterFit(0, len(stored.layers), encodable(told))
    return fit_of(stored, target, path)


@dataclass(frozen=True, slots=True)
class Taken:
    """changes: of each layer, every adapter's with its strength. warnings: what the files turned out to be."""

    changes: Mapping[str, Sequence[Weighted]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Resident:
    stored: StoredAdapter
    loaded: Loaded


Key = tuple[str, str]
"""A file's SHA-256 and the partition that its layers were laid onto."""


class AdapterShelf:
    """One thread takes, others may ask for bytes. limit: bytes kept between requests. device: where they lie."""

    def __init__(self, folder: Path | None, limit: int, device: torch.device) -> None:
        self._folder, self._limit, self._device = folder, limit, device
        self._paths: Mapping[str, Path] = {}
        self._held: OrderedDict[Key, _Resident] = OrderedDict()
        self._lock = threading.Lock()
        self.facts: tuple[AdapterFacts, ...] = ()
        self.reads = 0

    def list(
        self,
        transformers: Mapping[str, Dit],
        on_bytes: Callable[[int], None] = lambda _: None,
        own: Sequence[Path] = (),
    ) -> None:
        """own: files that are there without a folder, see `checkpoint.embedded.adapters`."""
        self._paths = adapter_paths(self._folder, own)
        self.facts = _all_facts(self._paths.values(), transformers, on_bytes)

    @property
    def bytes(self) -> int:
        """Resident now."""
        with self._lock:
            return sum(held.loaded.nbytes for held in self._held.values())

    def bytes_with(self, uses: Sequence[AdapterUse], partition: str) -> int:
        """Resident once a request has these: its own, and of the others what the limit leaves room for."""
        wanted = {(use.sha256, partition) for use in uses if use.strength}
        sizes = {facts.sha256: facts.bytes for facts in self.facts}
        with self._lock:
            held = {key: entry.loaded.nbytes for key, entry in self._held.items()}
        needed = sum(held.get(key, sizes.get(key[0], 0)) for key in wanted)
        others = sum(size for key, size in held.items() if key not in wanted)
        return needed + min(others, max(0, self._limit - needed))

    def rank_of(self, uses: Sequence[AdapterUse]) -> int | None:
        """The widest branch that these put beside a layer; None where they put none there."""
        wanted = {use.sha256 for use in uses if use.strength}
        found = [max(facts.ranks, default=0) for facts in self.facts if facts.sha256 in wanted]
        return max(found) if found else (0 if wanted else None)

    def take(self, uses: Sequence[AdapterUse], partition: str, model: Dit, on_read: OnRead = lambda: None) -> Taken:
        """CheckpointChanged for one whose file isn't the one that the request was admitted with, NumericalError for one
        with values that aren't finite. One of strength 0 is not read."""
        active = [use for use in uses if use.strength]
        changes: dict[str, list[Weighted]] = {}
        warnings: list[str] = []
        keys = {(use.sha256, partition) for use in active}
        for use in active:
            held = self._get((use.sha256, partition), keys, use, model, on_read)
            ratios = scales_of(held.stored, use.alpha_given).by_layer
            for layer, change in held.loaded.scaled(ratios).items():
                changes.setdefault(layer, []).append((use.strength, change))
            warnings += _table_warning(use, held.loaded, model)
        return Taken(changes, tuple(warnings))

    def settle(self) -> None:
        """A request is over: what is above the limit goes."""
        self._make_room(0, frozenset())

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def _get(self, key: Key, keys: set[Key], use: AdapterUse, model: Dit, on_read: OnRead) -> _Resident:
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        path = self._path_of(use)
        self._make_room(path.stat().st_size, keys)
        made = self._read(path, use, model, on_read)
        with self._lock:
            self._held[key] = made
        return made

    def _path_of(self, use: AdapterUse) -> Path:
        """The very file that was admitted."""
        path = self._paths.get(use.name)
        try:
            known = path is not None and sha256_of(path, default_cache_dir()) == use.sha256
        except CheckpointError:
            known = False
        if path is None or not known:
            raise CheckpointChanged(
                f"the file of the adapter {use.name!r} is not the one that the request was taken with"
            )
        return path

    def _read(self, path: Path, use: AdapterUse, model: Dit, on_read: OnRead) -> _Resident:
        try:
            source = open_source(path)
        except CheckpointError as error:
            raise CheckpointChanged(error.message) from None
        try:
            stored, target = read_stored(source), target_of(model)
            loaded = read_bound(source, bind(stored, target, path), target, self._device, on_read)
            for part in source.parts:
                part.require_unchanged()
        except CheckpointError as error:
            raise CheckpointChanged(error.message) from None
        finally:
            source.close()
        if loaded.not_finite:
            raise NumericalError(f"the adapter {use.name!r} isn't finite: {', '.join(loaded.not_finite)}")
        self.reads += 1
        return _Resident(stored, loaded)

    def _make_room(self, wanted: int, keep: set[Key] | frozenset[Key]) -> None:
        """Let go of what was used longest ago until `wanted` bytes more are within the limit, but of none of `keep`."""
        with self._lock:
            total = sum(held.loaded.nbytes for held in self._held.values())
            for key in list(self._held):
                if total + wanted <= self._limit:
                    return
                if key not in keep:
                    total -= self._held.pop(key).loaded.nbytes


def _table_warning(use: AdapterUse, loaded: Loaded, model: Dit) -> Iterator[str]:
    """The transformer keeps its own table; weights that were made for another one are off by the difference."""
    own = getattr(model, TABLE, None)
    if loaded.table is None or own is None:
        return
    same_shape = loaded.table.shape == own.shape
    difference = float((loaded.table.float() - own.float()).abs().max()) if same_shape else float("inf")
    if difference > TABLE_DIFFERENCE:
        apart = f"they differ by {difference:g}"
        yield f"the adapter {use.name!r} was made for a transformer with another AdaLN table: {apart}"
