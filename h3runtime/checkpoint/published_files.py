"""The public files that this runtime loads: names, sizes, digests, and where they are. One table; data only.

Sizes and digests are of the very files; each digest has its source. A file whose digest nobody has told has None, and
is then known by its size and its header alone. Nothing is downloaded. Read by `expected`, which warns of a file that
only bears such a name and size, by `synthetic`, whose files are called so, and by `h3runtime models`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Role = Literal["fl2va", "ref2va", "text_encoder", "video_vae", "audio_vae", "tokenizer"]

COMFY: Final = "Comfy-Org/MiniMax-H3"
NVFP4: Final = "lilcheaty/MiniMax-H3-NVFP4"
VENDOR: Final = "MiniMaxAI/MiniMax-H3"
LFS: Final = "Git LFS digests of Comfy-Org/MiniMax-H3 on Hugging Face, as several public manifests have them"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """name: of the file. role: what it is to a server. format: how it is stored. bytes: its size. sha256: small hex,
    None where it is not known. repository, folder: on Hugging Face. source: who tells the digest."""

    name: str
    role: Role
    format: str
    bytes: int
    sha256: str | None
    repository: str = COMFY
    folder: str = ""
    source: str = LFS

    @property
    def path(self) -> str:
        """Inside the repository."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


def file_name(role: str, form: str) -> str:
    """What a checkpoint of that role and format is called, whether one was published or not."""
    return f"{'qwen3vl_32b_minimax_h3' if role == 'text_encoder' else f'minimax_h3_{role}'}_{form}.safetensors"


def _transformer(role: Role, form: str, size: int, sha256: str | None) -> PublishedFile:
    return PublishedFile(file_name(role, form), role, form, size, sha256, folder="diffusion_models")


def _encoder(form: str, size: int, sha256: str | None) -> PublishedFile:
    name = file_name("text_encoder", form)
    return PublishedFile(name, "text_encoder", form, size, sha256, folder="text_encoders")


def _vae(role: Role, form: str, size: int, sha256: str | None) -> PublishedFile:
    return PublishedFile(file_name(role, form), role, form, size, sha256, folder="vae")


PUBLISHED: Final = (
    PublishedFile(
        file_name("fl2va", "pruned_nvfp4"),
        "fl2va",
        "pruned_nvfp4",
        12_528_636_800,
        "72fa9269ce551fb63ff42a32d9b46d0c122e84b4b2c511e22fa698287b088f70",
        NVFP4,
        source="the receipt of a public download of 2026-08-24, hashed after it",
    ),
    PublishedFile(
        file_name("ref2va", "pruned_nvfp4"),
        "ref2va",
        "pruned_nvfp4",
        12_528_636_800,
        "c813c5eabd85e275daccbf45e6f8ac4d9d14a1827d425e5be5070c92c60b78ac",
        NVFP4,
        source="two public manifests, of revision 8c5abfed61e1b6a170240792b65253fba1a65b7b",
    ),
    _transformer(
        "fl2va",
        "pruned_int8_convrot",
        20_970_379_616,
        "e889202c41dafb67b10d67b97f0d8541508036a6090af23425a5c2615d03c47a",
    ),
    _transformer(
        "ref2va",
        "pruned_int8_convrot",
        20_970_379_616,
        "9255f52b6677845ad238f20dfaafa94727053694127ab7f255c048f0f9365779",
    ),
    _transformer(
        "fl2va",
        "pruned_fp8_scaled",
        20_958_205_608,
        "12944c1f7791637e7de12208aef04da82bd26b95271b1b47d817364315ade993",
    ),
    _transformer(
        "ref2va",
        "pruned_fp8_scaled",
        20_958_205_608,
        "f86f2f79ebd2d76eb8eeb46091e83982e6ff51d255747e7b16e92834b392b8e9",
    ),
    _transformer(
        "fl2va", "pruned_bf16", 40_225_724_176, "a32572fb90b5508b201ec7c2eddcc184b13ddfd3c6f6d2cf06a0b46535d541b4"
    ),
    _transformer(
        "ref2va", "pruned_bf16", 40_225_724_176, "37c0da793e20ca735272ec2be655f08a2e10f97a3ec8fdfb40f5b39a736ed6fe"
    ),
    _transformer(
        "fl2va", "int8_convrot", 34_038_892_334, "7ad4c73e6e378b822ffd1629f27f632d3787d95f5e468e3af958f98c58df96a5"
    ),
    _transformer(
        "ref2va", "int8_convrot", 34_038_894_550, "9eef934046a0671bc8a5daf87100705e1478419c574cfde70c50fbe6885f76a9"
    ),
    _transformer("fl2va", "bf16", 66_280_487_368, "907d4add438438ec1544f5240c3b38532ed934fe6be75677a6bbda2a6fdd6182"),
    _transformer("ref2va", "bf16", 66_280_487_368, "e32c54c1a7b4f5f397f195cea267ccb18806303bb665678c4bee60953bdf3026"),
    _encoder("nvfp4_awq", 15_687_142_551, "35a88d51044231fe332301d7a62aa81e3f2cba62febeb446e2c1e3e0ef76f2c6"),
    _encoder("int8_convrot", 27_141_342_152, "bc2ced0fbea64757fa9acddccfc0b3f4819d1dcf1da6c124d690d368be283923"),
    _encoder("bf16", 51_506_295_256, "600d567f6a9629c8574e8e7041b199bdd9c59a986afa7906910a81919610607d"),
    _vae("video_vae", "fp16", 5_207_808_496, "7c1f131492e7eddacaac9069a61b81bdd39de5cc96561e677c5eab1cdce5e522"),
    _vae(
        "video_vae", "int8_convrot", 2_811_065_184, "52a2c8c73583c86e4f41cdcce3a6ad0ea562987bc0bf3d60a0cef5f5c8e60c0e"
    ),
    _vae("audio_vae", "fp32", 605_254_808, "8e505d95dd1561d47abd43d4238fd40d9bb1ae9e147ed0a4cba778d76ae4db48"),
)

TOKENIZER: Final = tuple(
    PublishedFile(
        name,
        "tokenizer",
        "json" if name.endswith(".json") else "text",
        size,
        sha256,
        VENDOR,
        "FL2VA/tokenizer",
        "public manifests of MiniMaxAI/MiniMax-H3, revision 5d9b308a59ab12e67147f191e184baf704185bd1",
    )
    for name, size, sha256 in (
        ("vocab.json", 2_776_833, "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910"),
        ("merges.txt", 1_671_839, "599bab54075088774b1733fde865d5bd747cbcc7a547c5bc12610e874e26f5e3"),
        ("tokenizer_config.json", 11_003, "a07e942ac874baa13758de8d1fbdb186683cc03416b5589e1b6671c6b3057c68"),
    )
)
"""One folder; Qwen's own, but for the config, which has H3's seven tokens besides."""


@dataclass(frozen=True, slots=True)
class Trailing:
    """A public file that has `extra` bytes behind its last tensor, which loading refuses as it does all that is no part
    of a tensor."""

    repository: str
    name: str
    bytes: int
    sha256: str
    extra: int


TRAILING: Final = (
    Trailing(
        "Abiray/Minimax-H3-nvfp4-INT4-INT8-Convrot",
        "MiniMax_H3_FL2VA_pruned_nvfp4.safetensors",
        12_528_636_865,
        "6ab7f0c48141e7919b32f925ca3def22e06a6aebeb9e0b6f5a0be0fe8409976f",
        65,
    ),
    Trailing(
        "Abiray/Minimax-H3-nvfp4-INT4-INT8-Convrot",
        "MiniMax_H3_Ref2VA_pruned_nvfp4.safetensors",
        12_528_636_866,
        "3e1be702c95bc057c05a7d1867e8aeea33073dcf5743835f2f27f06a2f34c596",
        66,
    ),
)
"""Of revision 908eccad7e68751190d04c171956f163bfeed741 (utensils/mold #1290 and its probe of the layout); what is there
since 6e632a197e7e1fe99f2c9f4b635c39db801b2210 has 12,528,636,800 bytes and none too many."""


def published_as(role: Role, form: str) -> PublishedFile:
    """The file of a role and a format; there is one."""
    (found,) = (file for file in PUBLISHED if (file.role, file.format) == (role, form))
    return found
