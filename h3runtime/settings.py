"""Every knob of the runtime: one frozen `Settings`, judged once, from flags, environment, a file and defaults.

A knob has one name in three spellings: the flag `--queue-limit`, the environment's `H3_QUEUE_LIMIT`, and the same word
on a `H3_QUEUE_LIMIT=8` line of the file that `--config` or `H3_CONFIG` names (the `h3.env` that `synth` writes). Flags
win over the environment, which wins over the file, which wins over the defaults of service-contract "Settings".

Everything wrong with them is one `SettingsError` whose offences carry the environment's spelling. The command line
feeds this module; `api`, `jobs` and `engine` read the result. No other module reads the environment.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from h3runtime.core import AREA_CAP, CHUNK_FRAMES, MIN_FRAMES, MIN_SIDE, SIDE_MULTIPLE, TRAINED_FRAMES
from h3runtime.errors import Offence, SettingsError

PREFIX = "H3_"
CONFIG_VARIABLE = "H3_CONFIG"
URL_VARIABLE = "H3_URL"
NOT_KNOBS = frozenset({CONFIG_VARIABLE, URL_VARIABLE, "H3_FIXTURES"})
"""Names with our prefix that are no settings: the file itself, the server that a client asks, and the folder of
fixtures that the tests read."""
DEFAULT_URL = "http://127.0.0.1:8001"
"""Where a server is that was started without settings."""

HOST = re.compile(r"(?:(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?")
"""A host of `H3_URL_ALLOW`, lower case; with a leading `*.` all names below it."""
MIB, GIB = 2**20, 2**30
PARTITION_PATHS: Mapping[str, str] = {"fl2va": "model_path", "ref2va": "ref2va_model_path"}
"""Which field names the transformer of a partition (`core.Task.runs_on`), in the order of loading."""
TRAINED_TILE = 256
"""Pixels; the decoder was trained on tiles of this size (conditioning contract §4.5)."""


def _device(value: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value):
        return value
    raise PydanticCustomError("device", "{value} is no device", {"value": value, "legal": "auto, cpu, cuda or cuda:N"})


def _vae_dtype(value: Any) -> Any:
    if value in ("bfloat16", "bf16"):
        why = "bfloat16 is refused: the video decoder loses visible detail in it"
        raise PydanticCustomError("vae_dtype", why, {"legal": "float16, float32"})
    return value


def _shapes(value: Any) -> Any:
    """`64x64x5, 960x544x124` -> ((64, 64, 5), (960, 544, 124)); an empty text is no shapes."""
    if not isinstance(value, str):
        return value
    return tuple(_shape(item.strip()) for item in value.split(",") if item.strip())


def _shape(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,5})", text)
    width, height, frames = (int(number) for number in match.groups()) if match else (0, 0, 0)
    sides_fit = min(width, height) >= MIN_SIDE and width % SIDE_MULTIPLE == 0 and height % SIDE_MULTIPLE == 0
    if not sides_fit or frames < MIN_FRAMES or frames % CHUNK_FRAMES != MIN_FRAMES:
        legal = "WIDTHxHEIGHTxFRAMES, comma-separated; sides multiples of 32 from 64, frames 17n+5"
        raise PydanticCustomError("shape", "{text} is no shape", {"text": text, "legal": legal})
    return width, height, frames


def _hosts(value: Any) -> Any:
    """`example.com, *.example.com:8443` -> ("example.com", "*.example.com:8443"); an empty text is no hosts."""
    if not isinstance(value, str):
        return value
    return tuple(_host(item.strip().lower()) for item in value.split(",") if item.strip())


def _host(text: str) -> str:
    match = HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 1) <= 65535:
        legal = "a host name, *.NAME for all below one, or an IP address (IPv6 in brackets), each with :PORT or without"
        raise PydanticCustomError("host", "{text} is no host", {"text": text, "legal": legal})
    return text


def _origins(value: Any) -> Any:
    """`https://a.example, http://localhost:3000` -> both as a browser says them, without a slash at the end."""
    if not isinstance(value, str):
        return value
    return tuple(_origin(item.strip().lower()) for item in value.split(",") if item.strip())


def _origin(text: str) -> str:
    if re.fullmatch(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", text):
        return text
    raise PydanticCustomError(
        "origin", "{text} is no origin", {"text": text, "legal": "https://HOST or https://HOST:PORT"}
    )


def _key(value: SecretStr) -> SecretStr:
    """What an Authorization header can carry; the message never holds the key itself."""
    if re.fullmatch(r"[!-~]{1,1024}", value.get_secret_value()):
        return value
    raise PydanticCustomError("key", "is no key", {"legal": "1 to 1024 printable ASCII characters without white space"})


def _whole_path(value: Path) -> Path:
    return value.expanduser().absolute()


FilePath = Annotated[Path, AfterValidator(_whole_path)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1)]


SERVICE_ONLY = frozenset(
    {
        "host",
        "port",
        "data_dir",
        "output_root",
        "media_root",
        "url_allow",
        "api_key",
        "api_keys_file",
        "callback_allow",
        "callback_secret_file",
        "cors_origins",
        "tls_cert",
        "tls_key",
        "retention_seconds",
        "read_seconds",
        "log_prompts",
        "queue_limit",
        "max_json_bytes",
        "max_upload_bytes",
        "disk_floor_bytes",
        "drain_seconds",
        "timeout_conditioning",
        "timeout_step",
        "timeout_decode",
        "restarts",
        "restart_window",
        "log_file",
        "otlp_endpoint",
        "warmup_shapes",
    }
)
"""Fields that only the service reads: a command that makes one clip has no queue, socket, warm-up or deadline."""
ATTENTION_ONLY = frozenset(
    {
        "attention",
        "head_slice_backend",
        "head_slice_size",
        "sol_tau",
        "sol_min_tokens",
        "sol_thresh_type",
        "sol_int8_qk",
        "sol_int8_pv",
        "sol_fallback",
        "sol_strict",
        "sage_qkv_layout",
    }
)
"""Fields that only the transformer's attention reads."""


class Settings(BaseSettings):
    """Judged and frozen. Sizes in bytes, times in seconds, paths absolute."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8001, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")
    data_dir: FilePath = Field(
        default_factory=lambda: default_data_dir(),
        description="Uploads, scraps, outputs lie below it. Default: h3runtime below XDG_DATA_HOME or ~/.local/share.",
    )
    output_root: FilePath = Field(
        default_factory=lambda data: data["data_dir"] / "outputs" if "data_dir" in data else Path(),
        description="Folder of the finished clips. Default: outputs below the data folder.",
    )
    media_root: FilePath | None = Field(
        None, description="Folder that requests may name media in by relative path. Default: no such requests."
    )
    url_allow: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_hosts)] = Field(
        (),
        description=(
            "Hosts that requests may name media of by URL, comma-separated: HOST, *.DOMAIN, each with :PORT or for "
            "any port. Private addresses only for a host given as an IP address or as localhost. Default: none."
        ),
    )
    api_key: Annotated[SecretStr, AfterValidator(_key)] | None = Field(
        None,
        description=(
            "Key that requests must bear (Authorization: Bearer KEY). Better set in the environment: other users of "
            "this machine see flags. Default: none is asked for."
        ),
    )
    api_keys_file: FilePath | None = Field(
        None, description="File of further keys, one NAME:SHA-256-HEX a line; each name sees its own jobs."
    )
    callback_allow: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_hosts)] = Field(
        (), description="Hosts that a callback_url may name, written as in H3_URL_ALLOW. Default: none."
    )
    callback_secret_file: FilePath | None = Field(
        None, description="File whose bytes sign callbacks (HMAC-SHA-256). Without it no callback is taken."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_origins)] = Field(
        (), description="Origins whose pages may call this server, comma-separated: https://HOST[:PORT]. Default: none."
    )
    tls_cert: FilePath | None = Field(
        None, description="PEM file of the certificate and its chain; with it the server speaks https only."
    )
    tls_key: FilePath | None = Field(None, description="PEM file of the certificate's private key, not encrypted.")
    retention_seconds: float = Field(
        604_800, gt=0, le=10**9, allow_inf_nan=False, description="How long a finished clip is kept."
    )
    read_seconds: Seconds = Field(30, description="Longest silence of a client in the middle of its request.")
    queue_limit: int = Field(16, ge=1, le=100_000, description="Jobs that may wait; one more is refused.")
    max_json_bytes: Bytes = Field(32 * MIB, description="Largest JSON body, in bytes.")
    max_upload_bytes: Bytes = Field(
        512 * MIB, description="Largest multipart body, medium, and sum of what is fetched by URL, in bytes."
    )
    disk_floor_bytes: int = Field(2 * GIB, ge=0, description="Free bytes below which no job is taken.")
    max_area: int = Field(
        AREA_CAP, ge=MIN_SIDE**2, description="Largest canvas, in pixels; above 1032192 is untrained."
    )
    max_frames: int = Field(
        TRAINED_FRAMES[1], ge=MIN_FRAMES, le=100_000, description="Longest clip, in frames; above 362 is untrained."
    )
    drain_seconds: float = Field(
        30, ge=0, le=86_400, allow_inf_nan=False, description="How long a running job may go on after SIGTERM."
    )
    timeout_conditioning: Seconds = Field(300, description="Longest silence of the conditioning stage, in seconds.")
    timeout_step: Seconds = Field(600, description="Longest sampler step, in seconds.")
    timeout_decode: Seconds = Field(300, description="Longest silence of a decode stage, in seconds.")
    timeout_mux: Seconds = Field(60, description="Longest silence of the encoder, in seconds.")
    restarts: int = Field(
        3, ge=0, le=1_000_000, description="How often a dead engine is started again within the restart window."
    )
    restart_window: Seconds = Field(600, description="Seconds that a death counts against the restarts.")
    log_file: FilePath | None = Field(None, description="File that gets the log lines too, rotated.")
    log_prompts: bool = Field(False, description="Whether prompts are logged, at debug level.")
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = Field(
        None, description="URL of an OpenTelemetry collector that gets spans (OTLP over HTTP). Default: none."
    )
    model_path: FilePath | None = Field(
        None,
        description=(
            "FL2VA transformer, for T2VA, I2VA, L2VA and FL2VA: a file, or a folder of shards or of Diffusers. "
            "Default: the embedded one if no transformer is named, else none."
        ),
    )
    ref2va_model_path: FilePath | None = Field(
        None,
        description=(
            "Ref2VA transformer, for Ref2VA, beside the other or alone. "
            "Default: the embedded one if no transformer is named, else none."
        ),
    )
    text_encoder_path: FilePath | None = Field(
        None, description="Text encoder checkpoint: a file, or a folder of shards. Default: the embedded one."
    )
    video_vae_path: FilePath | None = Field(None, description="Video VAE checkpoint. Default: the embedded one.")
    audio_vae_path: FilePath | None = Field(None, description="Audio VAE checkpoint. Default: the embedded one.")
    tokenizer_path: FilePath | None = Field(None, description="Folder of the tokenizer. Default: the embedded one.")
    lora_dir: FilePath | None = Field(
        None,
        description=(
            "Folder of adapters (LoRA, *.safetensors) that requests may name. "
            "Default: none but the embedded model's own."
        ),
    )
    lora_cache_bytes: int = Field(4 * GIB, ge=0, description="Adapters kept on the device between requests, in bytes.")
    upscaler_path: Literal["embedded"] | FilePath | None = Field(
        None,
        description=(
            "Latent upscaler of requests that ask to be refined, loaded by the first of them; "
            "embedded: the embedded model's own, beside its video VAE. Default: none in a server, embedded elsewhere."
        ),
    )
    qkv_order: Literal["auto", "contiguous", "interleaved"] = Field(
        "auto",
        description=(
            "Rows of the transformer's fused q, k and v: contiguous thirds, interleaved by head, "
            "or auto: told by the layout and by the weights."
        ),
    )
    verify: Literal["fast", "full"] = Field(
        "fast",
        description=(
            "fast: hash a checkpoint on its first load and believe that while path, size, time and inode stay; "
            "full: hash every byte at every start. Both check against SHA256SUMS beside it, if there is one."
        ),
    )
    device: Annotated[str, AfterValidator(_device)] = Field("auto", description="auto, cpu, cuda or cuda:N.")
    system_reserve_bytes: int | None = Field(
        None,
        ge=0,
        description=(
            "Bytes of the device's memory that neither weights nor requests may have. Default: where the GPU shares "
            "the host's memory 8 GiB, at most an eighth of it, for the system; elsewhere 0."
        ),
    )
    residency: Literal["all", "encoder_host", "encoder_disk"] = Field(
        "all",
        description=(
            "Where the text encoder's weights are between prompts: all, on the device with the others; encoder_host, "
            "in page-locked memory of the host, and moved in layer by layer; encoder_disk, in their file, read anew "
            "for every prompt that isn't remembered. The last two need a device with memory of its own."
        ),
    )
    attention: str = Field("auto", min_length=1, description="Attention backend; auto chooses one and says why.")
    head_slice_backend: str = Field(
        "sage2", min_length=1, description="Attention backend that kj_head_sliced gives some heads at a time to."
    )
    head_slice_size: int = Field(8, ge=1, le=1024, description="Heads that kj_head_sliced gives away at a time.")
    sol_tau: float = Field(
        1.3,
        ge=-100,
        le=100,
        allow_inf_nan=False,
        description="How far above the mean, in standard deviations, a block of keys must score for sol_attn to read "
        "all of it; less reads more.",
    )
    sol_min_tokens: int = Field(
        4096, ge=0, le=10**9, description="Packed rows below which a call is none for sol_attn."
    )
    sol_thresh_type: Literal["diag", "exact"] = Field(
        "diag",
        description=(
            "How sol_attn estimates the spread of the scores: diag, by each channel alone, is all that comfy-kitchen's "
            "kernel does; exact makes sol_attn unavailable."
        ),
    )
    sol_int8_qk: bool = Field(
        True,
        description="Multiply q and k in INT8 in sol_attn. comfy-kitchen's kernel always does: off makes it "
        "unavailable.",
    )
    sol_int8_pv: bool = Field(
        True,
        description="Multiply the weights and v in INT8 in sol_attn. comfy-kitchen's kernel always does: off makes it "
        "unavailable.",
    )
    sol_fallback: str = Field(
        "sage2", min_length=1, description="Attention backend of the calls that sol_attn isn't made for."
    )
    sol_strict: bool = Field(False, description="Fail a job with such a call instead.")
    sage_qkv_layout: Literal["auto", "strided_nhd", "contiguous_nhd", "contiguous_hnd"] = Field(
        "strided_nhd",
        description=(
            "How q, k and v go into SageAttention: strided_nhd, the projection's own views without a copy; copies of "
            "rows by heads (contiguous_nhd) or of heads by rows (contiguous_hnd); auto, as the architecture's row says."
        ),
    )
    mlp_chunks: int = Field(
        1, ge=1, le=4096, description="Chunks of rows that a block's MLP is computed in; 1 is all rows at once."
    )
    linear: str = Field("auto", min_length=1, description="Linear backend; auto chooses one and says why.")
    nvfp4_scale_backend: Literal["kitchen", "vortex", "vortex_native"] = Field(
        "kitchen",
        description=(
            "Who packs activations for NVFP4 products, the same bytes by each: kitchen, PyTorch's largest value and "
            "comfy-kitchen's packer; vortex, our kernel finds the largest value; vortex_native, ours packs too."
        ),
    )
    nvfp4_modulate_fusion: bool = Field(
        False,
        description="Let one kernel norm, modulate and pack what an NVFP4 product reads: fewer passes, the same bytes.",
    )
    nvfp4_swiglu_fusion: bool = Field(
        False, description="Let one kernel make the MLP's SwiGLU and pack it for an NVFP4 product, the same bytes."
    )
    nvfp4_fc2_lt_splitk1: bool = Field(
        False,
        description=(
            "Let the MLP's second product of exactly 37,810 rows, by nvfp4 or nvfp4_lt, run by one known schedule of "
            "cuBLASLt on SM 12.1, and by the usual product wherever anything of it differs."
        ),
    )
    fused: str = Field(
        "auto",
        min_length=1,
        description="Who computes what lies between a block's matrix products; auto chooses one and says why.",
    )
    self_test: Literal["on", "off"] = Field(
        "on",
        description=(
            "Whether every enabled kernel is asked known answers before the first clip, on: once for a driver, library "
            "versions and checkpoint; a kernel that is wrong isn't used, or the start fails."
        ),
    )
    cuda_graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description=(
            "Whether a sampler step is recorded as a CUDA graph and replayed, with the same bits: auto, where the "
            "warm-up measured that it helps; on, wherever it can be; off, never. Without a CUDA device: never."
        ),
    )
    cuda_graph_bytes: int = Field(
        GIB, ge=0, description="Device memory that recorded steps hold together, in bytes; one that needs more is none."
    )
    warmup_shapes: Annotated[tuple[tuple[int, int, int], ...], NoDecode, BeforeValidator(_shapes)] = Field(
        # Two sizes: what a clip costs at least can be told from what it costs by its size (jobs/history.py).
        ((64, 64, 5), (256, 256, 5)),
        description="WIDTHxHEIGHTxFRAMES that are run before the server is ready, comma-separated.",
    )
    vae_dtype: Annotated[Literal["float16", "float32"], BeforeValidator(_vae_dtype)] = Field(
        "float16",
        description="Number format of the video VAE: float16 or float32. A CPU encodes in float32 either way.",
    )
    vae_fused: str = Field(
        "auto",
        min_length=1,
        description="Who computes what lies between the products of the video decoder; auto chooses one and says why.",
    )
    vae_linear: str = Field(
        "auto",
        min_length=1,
        description="Linear backend of the video decoder's blocks; auto is exact, fp8 and int8 cost detail.",
    )
    vae_tile_size: int = Field(
        TRAINED_TILE, ge=64, le=4096, multiple_of=16, description="Decoder tile in pixels; only 256 was trained."
    )
    vae_tile_force: bool = Field(False, description="Allow another tile size, with a warning in every job.")
    vae_blend: Literal["blended", "raw"] = Field("blended", description="How tile seams are joined: blended or raw.")
    prompt_cache_bytes: int = Field(
        256 * MIB, ge=0, description="Encoded prompts kept in memory, in bytes; as much again for encoded media."
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise PydanticCustomError(
                "tls", "is missing", {"field": missing, "legal": "H3_TLS_CERT and H3_TLS_KEY together, or neither"}
            )
        return self

    @model_validator(mode="after")
    def _tile_is_trained(self) -> Settings:
        if self.vae_tile_size != TRAINED_TILE and not self.vae_tile_force:
            raise PydanticCustomError(
                "vae_tile_size",
                "{size} is not the size the decoder was trained on and shows a grid",
                {"size": self.vae_tile_size, "field": "vae_tile_size", "legal": "256; others need H3_VAE_TILE_FORCE=1"},
            )
        return self


def resolve(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """The settings of this process. `SettingsError` lists every unknown name and every illegal value.

    flags: by field name; None and absent are the same (the form `vars()` of parsed arguments has; others are ignored).
    config: the file; by default what `H3_CONFIG` names, if anything.
    """
    file = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if file is not None and not file.is_file():
        raise _settings_error([Offence(CONFIG_VARIABLE, f"{file} is no file", "a file of H3_NAME=VALUE lines")])
    sources: dict[str, Any] = {"_env_file": file}
    sources |= {name: v for name, v in (flags or {}).items() if name in Settings.model_fields and v is not None}
    # The environment's source takes what it knows and skips the rest, so a misspelt name is ours to find.
    offences = [_unknown(name) for name in os.environ if name.startswith(PREFIX) and not _is_known(name)]
    try:
        settings = Settings(**sources)
    except ValidationError as error:
        raise _settings_error(offences + _offences(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _settings_error([*offences, Offence(CONFIG_VARIABLE, f"{file} can't be read: {error}")]) from None
    if offences:
        raise _settings_error(offences)
    return settings


def remote_server(url: str | None) -> tuple[str, str | None]:
    """Where a client's server is and the key that it bears: `url` or `H3_URL` or the default, and `H3_API_KEY`."""
    return url or os.environ.get(URL_VARIABLE) or DEFAULT_URL, os.environ.get(variable("api_key")) or None


def add_flags(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    unused: frozenset[str] = frozenset(),
    without: frozenset[str] = frozenset(),
) -> None:
    """One flag per knob, `--config` for the file. Unset flags parse as None, so that lower sources show through.

    unused: fields that the command doesn't read. Their flags are taken, as the same lines of a shared file are, but its
    help doesn't list what does nothing there. without: fields whose flag means something else in that command.
    """
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"File of H3_NAME=VALUE lines ({CONFIG_VARIABLE}).")
    for name, field in Settings.model_fields.items():
        if name in without:
            continue
        told = f"{field.description} {_default_text(field)}[{variable(name)}]".replace("%", "%%")
        help_text = argparse.SUPPRESS if name in unused else told
        if field.annotation is bool:
            parser.add_argument(flag(name), action=argparse.BooleanOptionalAction, default=None, help=help_text)
        else:
            parser.add_argument(flag(name), metavar="VALUE", default=None, help=help_text)


def variable(field: str) -> str:
    """`queue_limit` -> `H3_QUEUE_LIMIT`."""
    return PREFIX + field.upper()


def flag(field: str) -> str:
    """`queue_limit` -> `--queue-limit`."""
    return "--" + field.replace("_", "-")


def default_data_dir() -> Path:
    """Per user: below `XDG_DATA_HOME`, else below `~/.local/share` (XDG base directory specification)."""
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "share"
    return base / "h3runtime"


def default_cache_dir() -> Path:
    """Per user, for what can be made again (kernels, synthesised checkpoints): `XDG_CACHE_HOME`, else `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "h3runtime"


def _is_known(name: str) -> bool:
    return name in NOT_KNOBS or name[len(PREFIX) :].lower() in Settings.model_fields


def _unknown(name: str) -> Offence:
    known = [variable(field) for field in Settings.model_fields]
    near = difflib.get_close_matches(name.upper(), known, n=1)
    return Offence(name, "unknown setting" + (f"; did you mean {near[0]}?" if near else ""), ", ".join(known))


def _offences(error: ValidationError) -> list[Offence]:
    return [
        _offence(item, str(item["loc"][0] if item["loc"] else ""), item.get("ctx", {}))
        for item in error.errors(include_url=False)
        # The folder of outputs isn't looked at while another knob is wrong; that is no fault of its own.
        if item["type"] != "default_factory_not_called"
    ]


def _offence(item: ErrorDetails, field: str, context: Mapping[str, Any]) -> Offence:
    if item["type"] == "extra_forbidden":
        return _unknown(field.upper())
    # Our own messages name the value; the library's don't.
    message = item["msg"] if context.get("legal") else f"{item['input']!r:.80}: {item['msg']}"
    return Offence(variable(str(context.get("field", field))), message, str(context.get("legal", "")))


def _settings_error(offences: list[Offence]) -> SettingsError:
    told = [f"{o.field}: {o.message}" + (f" (legal: {o.legal})" if 0 < len(o.legal) < 200 else "") for o in offences]
    return SettingsError("; ".join(told), offences)


def _default_text(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default is None or field.default == ():
        return ""
    if isinstance(field.default, tuple):
        return f"Default: {','.join('x'.join(map(str, shape)) for shape in field.default)}. "
    return f"Default: {field.default}. "
