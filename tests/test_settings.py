"""Knobs: one list in three spellings, which source wins, and one error for everything that is wrong."""

from __future__ import annotations

import argparse
import os
import pickle
from pathlib import Path

import pytest

from h3runtime.errors import SettingsError
from h3runtime.settings import CONFIG_VARIABLE, Settings, add_flags, flag, resolve, variable

KNOBS = [
    "H3_HOST",
    "H3_PORT",
    "H3_DATA_DIR",
    "H3_OUTPUT_ROOT",
    "H3_MEDIA_ROOT",
    "H3_URL_ALLOW",
    "H3_QUEUE_LIMIT",
    "H3_MAX_JSON_BYTES",
    "H3_MAX_UPLOAD_BYTES",
    "H3_DISK_FLOOR_BYTES",
    "H3_MAX_AREA",
    "H3_MAX_FRAMES",
    "H3_DRAIN_SECONDS",
    "H3_TIMEOUT_CONDITIONING",
    "H3_TIMEOUT_STEP",
    "H3_TIMEOUT_DECODE",
    "H3_TIMEOUT_MUX",
    "H3_RESTARTS",
    "H3_RESTART_WINDOW",
    "H3_LOG_FILE",
    "H3_MODEL_PATH",
    "H3_REF2VA_MODEL_PATH",
    "H3_TEXT_ENCODER_PATH",
    "H3_VIDEO_VAE_PATH",
    "H3_AUDIO_VAE_PATH",
    "H3_TOKENIZER_PATH",
    "H3_QKV_ORDER",
    "H3_VERIFY",
    "H3_DEVICE",
    "H3_ATTENTION",
    "H3_LINEAR",
    "H3_WARMUP_SHAPES",
    "H3_VAE_DTYPE",
    "H3_VAE_TILE_SIZE",
    "H3_VAE_TILE_FORCE",
    "H3_VAE_BLEND",
    "H3_PROMPT_CACHE_BYTES",
]
"""Of service-contract "Settings", what this version consumes; also the restarts and the order of q, k and v."""


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
    assert [variable(field) for field in Settings.model_fields] == KNOBS
    parser = argparse.ArgumentParser()
    add_flags(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert options == {flag(field) for field in Settings.model_fields} | {
        "-h",
        "--help",
        "--config",
        "--no-vae-tile-force",
    }
    text = parser.format_help()
    for field in Settings.model_fields:
        assert flag(field) in text
        assert f"[{variable(field)}]" in "".join(text.split())


def test_defaults_are_the_contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = resolve()
    assert (settings.host, settings.port, settings.queue_limit, settings.drain_seconds) == ("127.0.0.1", 8001, 16, 30)
    assert (settings.max_json_bytes, settings.max_upload_bytes) == (32 * 2**20, 512 * 2**20)
    assert (settings.disk_floor_bytes, settings.max_area, settings.max_frames) == (2 * 2**30, 1032192, 362)
    assert (settings.vae_dtype, settings.vae_tile_size, settings.vae_blend) == ("float16", 256, "blended")
    assert (settings.device, settings.attention, settings.linear) == ("auto", "auto", "auto")
    assert (settings.data_dir, settings.output_root) == (tmp_path / "h3runtime", tmp_path / "h3runtime" / "outputs")
    assert settings.media_root is None
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
        ("url_allow", "https://example.com"),
        ("url_allow", "example.com/path"),
        ("url_allow", "ex*mple.com"),
        ("url_allow", "*"),
        ("url_allow", "example.com:70000"),
        ("url_allow", "::1"),
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
