"""Read the quantization config of a checkpoint, from whichever files state it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.dialects.compressed_tensors import read_compressed_tensors
from convertkit.dialects.modelopt import read_modelopt
from convertkit.dialects.scheme import Faults, Scheme, blocks_of, mismatch_finding
from convertkit.errors import Finding, Severity

OTHERS = frozenset(
    (
        "awq",
        "gptq",
        "fp8",
        "bitsandbytes",
        "mxfp4",
        "auto-round",
        "quark",
        "torchao",
        "hqq",
        "eetq",
        "aqlm",
        "vptq",
        "higgs",
        "finegrained_fp8",
        "fbgemm_fp8",
    )
)
"""Values of ``quant_method`` in transformers 5 for quantizations that convertkit does not read."""


def read_scheme(
    config: Mapping[str, Any], quant_config: Mapping[str, Any], mismatch: Severity = "warning"
) -> tuple[Scheme | None, tuple[Finding, ...]]:
    """The scheme stated by ``config.json`` or else by ``hf_quant_config.json``, and every fault of both.

    Engines believe ``config.json`` first (vLLM 0.33 ``weight_utils.py:263``). Faults are errors E_QCONFIG and
    E_UNSUPPORTED_QUANT; two statements that disagree are a finding of severity ``mismatch``.
    """
    stated = [(CONFIG, path, block) for path, block in blocks_of(config)]
    if quant_config:
        stated.append((QUANT_CONFIG, "quantization", quant_config))
    schemes: list[Scheme] = []
    findings: list[Finding] = []
    for file, path, block in stated:
        faults = Faults(file)
        scheme = _read_block(path, block, file, faults)
        findings += faults.items
        if scheme is not None:
            schemes.append(scheme)
    other = next((scheme for scheme in schemes if scheme.meaning() != schemes[0].meaning()), None)
    if other is not None:
        places = " and ".join(dict.fromkeys(scheme.place for scheme in schemes))
        message = f"the quantization is stated {len(schemes)} times, differently, in {places}"
        message += f": {'; '.join(_differences(schemes[0], other))}"
        fix = "convertkit reads the first; repair --set-config writes all of them from the tensors"
        findings.append(mismatch_finding(mismatch, message, other.place, fix=fix))
    return (schemes[0] if schemes else None), tuple(findings)


def _differences(one: Scheme, other: Scheme) -> Iterator[str]:
    """What two schemes say differently, the first one first."""
    pairs = (("dialect", one.dialect, other.dialect), ("KV cache", one.kv_cache, other.kv_cache))
    for what, mine, yours in (*pairs, ("algorithms", _joined(one.algorithms), _joined(other.algorithms))):
        if mine != yours:
            yield f"{what} {mine or 'not stated'} and {yours or 'not stated'}"
    lists = (("left out", one.ignore, other.ignore), ("targets", one.targets, other.targets))
    layers = [[f"{name} ({algorithm})" for name, algorithm in scheme.layers.items()] for scheme in (one, other)]
    for what, left, right in (*lists, ("listed", layers[0], layers[1])):
        for where, more in (("first", set(left) - set(right)), ("other", set(right) - set(left))):
            if more:
                names = sorted(more)
                yield f"{what} only in the {where}: {', '.join(names[:4])}" + (" …" if len(names) > 4 else "")


def _joined(names: Sequence[str]) -> str:
    return ", ".join(sorted(set(names)))


def _read_block(path: str, block: Any, file: str, faults: Faults) -> Scheme | None:
    if not isinstance(block, Mapping):
        faults.add(path, f"'{path}' must be an object")
        return None
    method = block.get("quant_method")
    if method is None:
        producer = block.get("producer")
        named = producer.get("name") if isinstance(producer, Mapping) else None
        method = "modelopt" if named == "modelopt" or "quant_algo" in block or "quantization" in block else None
    if isinstance(method, str) and method.lower().startswith("modelopt"):
        return read_modelopt(block, file, faults)
    if method == "compressed-tensors":
        return read_compressed_tensors(block, file, faults)
    if isinstance(method, str) and method in OTHERS:
        faults.unsupported("quant_method", f"the checkpoint is quantized with {method}, which convertkit cannot read")
    else:
        faults.add("quant_method", f"'quant_method' is {method!r}, which convertkit does not know")
    return None
