"""What machines that aren't at hand say of themselves, as `device_facts` would have it there."""

from dataclasses import replace

from h3runtime.backends.attention.facts import DeviceFacts

SAGE2 = {"sageattention/_fused", "sageattention/_qattn_sm80", "sageattention/_qattn_sm89"}
KITCHEN = "comfy_kitchen/backends/cuda/_C"
OWN = {"h3_kernels/attention8", "h3_kernels/sparse", "h3_kernels/sparse8"}

CPU = DeviceFacts("cpu", torch="2.13.0+cpu", libraries={"comfy_kitchen": "0.2.40", "h3_kernels": "0.1.0"})
H200 = DeviceFacts(
    kind="cuda",
    name="NVIDIA H200",
    capability=(9, 0),
    torch="2.11.0+cu130",
    cudnn=91900,
    libraries={
        "sageattention": "2.2.0",
        "flash_attn": "4.0.0b36",
        "comfy_kitchen": "0.2.40",
        "cudnn": "1.32.0",
        "triton": "3.6.0",
        "h3_kernels": "0.1.0",
    },
    parts=frozenset({*SAGE2, "sageattention/_qattn_sm90", "flash_attn/cute/interface", KITCHEN, *OWN}),
)
GB10 = replace(
    H200,
    name="NVIDIA GB10",
    capability=(12, 1),
    libraries={"sageattention": "2.2.0", "comfy_kitchen": "0.2.40", "triton": "3.6.0", "h3_kernels": "0.1.0"},
    parts=frozenset({*SAGE2, KITCHEN, *OWN}),
)
RTX_PRO_6000 = replace(
    H200,
    name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    capability=(12, 0),
    libraries={"sageattn3": "1.0.0", "sageattention": "1.0.6", "triton": "3.6.0", "h3_kernels": "0.1.0"},
    parts=frozenset({"fp4attn_cuda", "fp4quant_cuda", *OWN}),
)
BARE_H200 = replace(H200, libraries={}, parts=frozenset())


def without(facts: DeviceFacts, package: str) -> DeviceFacts:
    """The same machine with a package taken away."""
    left = {name: version for name, version in facts.libraries.items() if name != package}
    return replace(facts, libraries=left, parts=frozenset(p for p in facts.parts if not p.startswith(f"{package}/")))
