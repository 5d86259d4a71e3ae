"""Knobs: one list in three spellings, which source wins, and one error for everything that is wrong."""

from __future__ import annotations

import argparse
import os
import pickle
from pathlib import Path

import pytest

from h3runtime.__main__ import build_parser
from h3runtime.errors import SettingsError
from h3runtime.settings import CONFIG_VARIABLE, Settings, add_flags, flag, resolve, variable

CONTRACT = """
HOST PORT DATA_DIR OUTPUT_ROOT MEDIA_ROOT API_KEY API_KEYS_FILE URL_ALLOW CALLBACK_ALLOW CALLBACK_SECRET_FILE
CORS_ORIGINS QUEUE_LIMIT MAX_JSON_BYTES MAX_UPLOAD_BYTES RETENTION_SECONDS DISK_FLOOR_BYTES MAX_AREA MAX_FRAMES
DRAIN_SECONDS TIMEOUT_CONDITIONING TIMEOUT_STEP TIMEOUT_DECODE TIMEOUT_MUX LOG_FILE LOG_PROMPTS
MODEL_PATH REF2VA_MODEL_PATH TEXT_ENCODER_PATH VIDEO_VAE_PATH AUDIO_VAE_PATH TOKENIZER_PATH LORA_DIR UPSCALER_PATH
VERIFY DEVICE ATTENTION LINEAR MLP_CHUNKS HEAD_SLICE_BACKEND HEAD_SLICE_SIZE SOL_TAU SOL_MIN_TOKENS SOL_THRESH_TYPE
SOL_INT8_QK SOL_INT8_PV SOL_FALLBACK SOL_STRICT SAGE_QKV_LAYOUT NVFP4_SCALE_BACKEND NVFP4_MODULATE_FUSION
NVFP4_SWIGLU_FUSION NVFP4_FC2_LT_SPLITK1 RESIDENCY WARMUP_SHAPES VAE_DTYPE VAE_TILE_SIZE VAE_TILE_FORCE VAE_BLEND
PROMPT_CACHE_BYTES
"""
"""The list of service-contract "Settings"."""
OURS = """
FUSED VAE_FUSED VAE_LINEAR CUDA_GRAPHS CUDA_GRAPH_BYTES LORA_CACHE_BYTES RESTARTS RESTART_WINDOW QKV_ORDER READ_SECONDS
TLS_CERT TLS_KEY OTLP_ENDPOINT SELF_TEST SYSTEM_RESERVE_BYTES
"""
"""Knobs beyond the contract."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("H3_"):
            monkeypatch.delenv(name)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return parser.parse_args(arguments)


def refused(**flags: str) -> SettingsError:
    with pytest.raises(SettingsError) as raised:
        resolve(flags)
    return raised.value


def test_fields_flags_and_help_are_the_contracts_list() -> None:
    fields = {field.upper() for field in Settings.model_fields}
    assert fields == set(CONTRACT.split()) | set(OURS.split())
    parser = argparse.ArgumentParser()
    add_flags(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert options == {flag(field) for field in Settings.model_fields} | {
        "-h",
        "--help",
        "--config",
        "--no-log-prompts",
        "--no-vae-tile-force",
        "--no-sol-int8-qk",
        "--no-sol-int8-pv",
        "--no-sol-strict",
        "--no-nvfp4-modulate-fusion",
        "--no-nvfp4-swiglu-fusion",
        "--no-nvfp4-fc2-lt-splitk1",
    }


def test_help_of_serve_lists_every_knob(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    text = "".join(capsys.readouterr().out.split())
    for field in Settings.model_fields:
        assert flag(field) in text
        assert f"[{variable(field)}]" in text


@pytest.mark.parametrize("value", ["", "two words", "sch\u00fcssel", "tab\t", "x" * 1025])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(value: str) -> None:
    error = refused(api_key=value)
    assert [offence.field for offence in error.offences] == ["H3_API_KEY"]
    assert not value or value not in error.message


def test_a_key_is_never_printed() -> None:
    settings = resolve({"api_key": "geheim"})
    for text in (repr(settings), str(settings), f"{settings.api_key}", settings.model_dump_json(), str(vars(settings))):
        assert "geheim" not in text
    assert settings.api_key is not None and settings.api_key.get_secret_value() == "geheim"
    assert "geheim" not in refused(api_key="geheim", port="x").message


def test_tls_needs_both_files() -> None:
    assert [offence.field for offence in refused(tls_cert="/c.pem").offences] == ["H3_TLS_KEY"]
    assert [offence.field for offence in refused(tls_key="/k.pem").offences] == ["H3_TLS_CERT"]
    settings = resolve({"tls_cert": "/c.pem", "tls_key": "/k.pem"})
    assert (settings.tls_cert, settings.tls_key) == (Path("/c.pem"), Path("/k.pem"))


def test_defaults_are_the_contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = resolve()
    assert (settings.host, settings.port, settings.queue_limit, settings.drain_seconds) == ("127.0.0.1", 8001, 16, 30)
    assert (settings.max_json_bytes, settings.max_upload_bytes) == (32 * 2**20, 512 * 2**20)
    assert (settings.disk_floor_bytes, settings.max_area, settings.max_frames) == (2 * 2**30, 1032192, 362)
    assert (settings.vae_dtype, settings.vae_tile_size, settings.vae_blend) == ("float16", 256, "blended")
    assert (settings.device, settings.attention, settings.linear, settings.fused) == ("auto",) * 4
    assert settings.residency == "all" and settings.system_reserve_bytes is None
    assert (settings.head_slice_backend, settings.head_slice_size, settings.mlp_chunks) == ("sage2", 8, 1)
    assert (settings.sol_tau, settings.sol_min_tokens, settings.sol_thresh_type) == (1.3, 4096, "diag")
    assert settings.sol_int8_qk and settings.sol_int8_pv and not settings.sol_strict
    assert (settings.sol_fallback, settings.sage_qkv_layout) == ("sage2", "strided_nhd")
    assert settings.nvfp4_scale_backend == "kitchen"
    assert not any((settings.nvfp4_modulate_fusion, settings.nvfp4_swiglu_fusion, settings.nvfp4_fc2_lt_splitk1))
    assert (settings.data_dir, settings.output_root) == (tmp_path / "h3runtime", tmp_path / "h3runtime" / "outputs")
    assert (settings.retention_seconds, settings.log_prompts) == (604_800, False)
    assert settings.media_root is settings.api_key is settings.api_keys_file is None
    assert settings.cors_origins == settings.callback_allow == ()
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "h3.env"
    file.write_text(
        '# a set\nH3_QUEUE_LIMIT=1\nH3_PORT=1\nexport H3_MAX_FRAMES=22\nH3_MODEL_PATH="/a b/m.safetensors"\n'
    )
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    monkeypatch.setenv("H3_QUEUE_LIMIT", "2")
    monkeypatch.setenv("H3_PORT", "2")
    settings = resolve(vars(parse("--queue-limit", "3")))
    assert (settings.queue_limit, settings.port, settings.max_frames) == (3, 2, 22)
    assert settings.model_path == Path("/a b/m.safetensors")
    monkeypatch.delenv(CONFIG_VARIABLE)
    arguments = parse("--config", str(file))
    assert resolve(vars(arguments), arguments.config).max_frames == 22


def test_everything_wrong_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "h3.env"
    file.write_text("H3_PORTT=1\nH3_DEVICE=tpu\n")
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    monkeypatch.setenv("H3_QUEUE_LIMT", "2")
    monkeypatch.setenv("H3_VAE_DTYPE", "bfloat16")
    error = refused(port="99999", drain_seconds="nan", vae_blend="soft")
    fields = {offence.field for offence in error.offences}
    assert fields == {
        "H3_PORTT",
        "H3_DEVICE",
        "H3_QUEUE_LIMT",
        "H3_VAE_DTYPE",
        "H3_PORT",
        "H3_DRAIN_SECONDS",
        "H3_VAE_BLEND",
    }
    for word in ("did you mean H3_QUEUE_LIMIT", "did you mean H3_PORT?", "bfloat16 is refused", "99999", "tpu"):
        assert word in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", "x"),
        ("queue_limit", "0"),
        ("max_json_bytes", "-1"),
        ("max_frames", "4"),
        ("max_area", "100"),
        ("timeout_step", "0"),
        ("timeout_mux", "inf"),
        ("device", "cuda:x"),
        ("vae_dtype", "bf16"),
        ("vae_tile_size", "512"),
        ("vae_tile_force", "maybe"),
        ("mlp_chunks", "0"),
        ("head_slice_size", "0"),
        ("sol_tau", "nan"),
        ("sol_min_tokens", "-1"),
        ("sol_thresh_type", "full"),
        ("sol_strict", "perhaps"),
        ("sage_qkv_layout", "strided"),
        ("nvfp4_scale_backend", "torch"),
        ("nvfp4_modulate_fusion", "perhaps"),
        ("nvfp4_swiglu_fusion", "2"),
        ("nvfp4_fc2_lt_splitk1", "auto"),
        ("residency", "disk"),
        ("system_reserve_bytes", "-1"),
        ("url_allow", "https://example.com"),
        ("url_allow", "example.com/path"),
        ("url_allow", "ex*mple.com"),
        ("url_allow", "*"),
        ("url_allow", "example.com:70000"),
        ("url_allow", "::1"),
        ("callback_allow", "https://example.com"),
        ("cors_origins", "example.com"),
        ("cors_origins", "https://example.com/page"),
        ("cors_origins", "*"),
        ("retention_seconds", "0"),
        ("read_seconds", "-1"),
        ("warmup_shapes", "64x64"),
        ("warmup_shapes", "64x64x6"),
        ("warmup_shapes", "65x64x5"),
        ("warmup_shapes", "32x64x5"),
        ("host", ""),
    ],
)
def test_an_illegal_value_is_named(field: str, value: str) -> None:
    error = refused(**{field: value})
    assert [offence.field for offence in error.offences] == [variable(field)]


def test_legal_spellings() -> None:
    settings = resolve({"device": "cuda:1", "warmup_shapes": "64x64x5, 960x544x124", "vae_dtype": "float32"})
    assert settings.warmup_shapes == ((64, 64, 5), (960, 544, 124))
    assert (settings.device, settings.vae_dtype) == ("cuda:1", "float32")
    assert resolve({"warmup_shapes": ""}).warmup_shapes == ()
    assert resolve().url_allow == resolve({"url_allow": ""}).url_allow == ()
    hosts = "Example.com, *.cdn.example.com:8443,[::1]:80,localhost"
    assert resolve({"url_allow": hosts}).url_allow == tuple(hosts.lower().replace(" ", "").split(","))
    assert resolve(vars(parse("--vae-tile-size", "512", "--vae-tile-force"))).vae_tile_size == 512


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H3_QUEUE_LIMIT", "")
    monkeypatch.setenv("H3_LOG_FILE", "")
    assert (resolve().queue_limit, resolve().log_file) == (16, None)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"H3_CONFIG: .*absent"):
        resolve(config=tmp_path / "absent")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        resolve().port = 1  # type: ignore[misc]
