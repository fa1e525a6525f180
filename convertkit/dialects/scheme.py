"""What a quantization config says, whichever dialect says it, and where configs keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convertkit.containers.folder import CONFIG
from convertkit.dialects.patterns import Matcher, PatternFault, Syntax, pattern_fault
from convertkit.errors import Finding, Severity, finding

BLOCK_KEYS = ("quantization_config", "compression_config")
"""Keys of a quantization block (the second is that of llm-compressor before 0.2)."""

SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config", "transformer_layer_config")
"""Nested configs that may carry the block (vLLM 0.33 ``transformers_utils/config.py:953``)."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization config, read.

    ``dialect`` is ``modelopt``, ``modelopt-mixed`` or ``compressed-tensors``. ``layers`` are the modules a mixed
    config lists, with their algorithm; otherwise ``targets`` and ``ignore`` select. ``kv_cache`` names the format
    of the KV cache. ``foreign`` are algorithms that convertkit does not read, ``unread`` patterns it does not
    understand. ``place`` is where it was found.
    """

    dialect: str
    algorithms: tuple[str, ...]
    ignore: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    kv_cache: str | None = None
    foreign: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    place: str = CONFIG

    @property
    def activations(self) -> bool:
        """Whether activations are quantized too (W4A4)."""
        return "NVFP4" in self.algorithms

    def meaning(self) -> tuple[Any, ...]:
        """What must be equal in two files that describe the same checkpoint."""
        algorithms = tuple(sorted(set(self.algorithms)))
        names = (frozenset(self.ignore), frozenset(self.targets))
        return (self.dialect, algorithms, *names, tuple(sorted(self.layers.items())), self.kv_cache)


class Faults:
    """Collects the faults of one config block: E_QCONFIG with the key named."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.items: list[Finding] = []

    def add(self, key: str, message: str, fix: str = "") -> None:
        self.items.append(finding("E_QCONFIG", "error", message, file=self.file, key=key, fix=fix))

    def unsupported(self, key: str, message: str) -> None:
        self.items.append(finding("E_UNSUPPORTED_QUANT", "error", message, file=self.file, key=key))

    def strings(self, block: Mapping[str, Any], key: str) -> tuple[str, ...]:
        """A list of non-empty strings; absent and null are empty."""
        value = block.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or any(not isinstance(item, str) or not item for item in value):
            self.add(key, f"'{key}' must be a list of names")
            return ()
        return tuple(value)

    def unread(self, key: str, syntax: Syntax, entries: Sequence[str]) -> tuple[str, ...]:
        """The patterns among entries that are not used. Those that could hang a reader are faults; the others
        (look-arounds, flags) are only not understood."""
        bad: list[str] = []
        for entry in entries:
            fault = pattern_fault(syntax, entry.removeprefix("re:"))
            if fault is not None:
                bad.append(entry)
            if fault is not None and fault.unsafe:
                fix = "repeat single characters only, as in re:.*name$"
                self.add(key, f"the pattern '{entry}' has {fault}", fix=fix)
        unused = set(bad)
        good = [entry for entry in entries if entry not in unused]
        try:
            Matcher([(syntax, entry.removeprefix("re:")) for entry in good])
        except PatternFault as fault:
            self.add(key, f"{len(good)} patterns: {fault}")
            bad += good
        return tuple(bad)


def mismatch_finding(
    severity: Severity,
    message: str,
    file: str,
    *,
    tensor: str | None = None,
    fix: str = "",
    data: Mapping[str, Any] | None = None,
) -> Finding:
    """A contradiction between config and tensors: an error E_QCONFIG_MISMATCH, or W_QCONFIG_MISMATCH."""
    code = "E_QCONFIG_MISMATCH" if severity == "error" else "W_QCONFIG_MISMATCH"
    return finding(code, severity, message, file=file, tensor=tensor, fix=fix, data=data)


def blocks_of(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every quantization block of a config, outermost first, with its path of keys."""
    for key in BLOCK_KEYS:
        if config.get(key) is not None:
            yield key, config[key]
    for section in SECTIONS:
        part = config.get(section)
        if isinstance(part, Mapping):
            for path, block in blocks_of(part):
                yield f"{section}.{path}", block


def strip_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without any quantization block, at the top and in nested model configs."""
    return {
        key: strip_quantization(value) if key in SECTIONS and isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in BLOCK_KEYS
    }


def with_quantization(config: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose only quantization block is this one, at the top level, where every reader looks."""
    return {**strip_quantization(config), BLOCK_KEYS[0]: dict(block)}
