"""What each engine would load of a checkpoint's folder: its choice of files, the configs as it parses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.checks.mask_embedding import read_mask_file
from convertkit.containers.folder import CONFIG, INDEX_SUFFIX, MASK_EMBEDDING, QUANT_CONFIG
from convertkit.containers.stored import StoredFolder, planned_folder, read_folder
from convertkit.engines.files import chosen
from convertkit.engines.model import Refused
from convertkit.engines.source import MaskFile, Source


@dataclass
class Sources:
    """Sources by engine. Engines that read the same files share one, since what is derived from 122,880 names is
    remembered there."""

    checkpoint: Checkpoint
    given: StoredFolder | None = None
    _made: dict[tuple[str, ...], Source] = field(default_factory=dict)

    @cached_property
    def folder(self) -> StoredFolder:
        """The folder as it lies on the disk; of one file alone that file, without what lies beside it."""
        if self.given is not None:
            return self.given
        if self.checkpoint.is_file:
            return _one_file(self.checkpoint)
        return planned_folder(self.checkpoint) if self.checkpoint.planned else read_folder(self.checkpoint)

    @cached_property
    def _mask_file(self) -> MaskFile | None:
        """``mask_embedding.pt``, which only torch can read."""
        path = self.folder.root / MASK_EMBEDDING
        return read_mask_file(path) if self.folder.mask_embedding else None

    def of(self, engine: str) -> Source:
        """What ``engine`` (a key of ``engines.rules.ENGINES``) would load."""
        folder = self.folder
        if self.checkpoint.is_file:
            return self._source(folder.names, None)
        early = _config_refusal(engine, folder)
        indexes = {name: value for name, value in folder.documents.items() if name.endswith(INDEX_SUFFIX)}
        indexes |= {name: None for name in folder.faults if name.endswith(INDEX_SUFFIX)}
        choice = chosen(engine, folder.names, indexes)
        broken = next((name for name in choice.files if name in folder.unreadable), None)
        refusal = early or choice.refused
        if refusal is None and broken is not None:
            message = f"{broken}: {folder.unreadable[broken]}"
            refusal = Refused("load_weights", message, f"{engine}.safetensors")
        return self._source(choice.files or folder.names, refusal)

    def _source(self, files: tuple[str, ...], refusal: Refused | None) -> Source:
        folder = self.folder
        if refusal is not None or files not in self._made:
            specs = tuple(spec for name in files for spec in folder.files.get(name, ()))
            config, quant_config = folder.document(CONFIG), folder.document(QUANT_CONFIG)
            empty = QUANT_CONFIG in folder.documents and not quant_config
            made = Source(specs, config, quant_config, self._mask_file, refusal, empty)
            if refusal is not None:
                return made
            self._made[files] = made
        return self._made[files]


def _one_file(checkpoint: Checkpoint) -> StoredFolder:
    specs: Mapping[str, tuple[TensorSpec, ...]] = {
        file.name: tuple(checkpoint.tensors[name].spec for name in sorted(checkpoint.tensors))
        for file in checkpoint.files
    }
    return StoredFolder(checkpoint.root, specs)


def _config_refusal(engine: str, folder: StoredFolder) -> Refused | None:
    """The config is read before anything else, so what is wrong with the file is what the engine says first."""
    rule = f"{engine}.config-json"
    if CONFIG in folder.faults:
        return Refused("config", f"{CONFIG} cannot be parsed: {folder.faults[CONFIG]}", rule)
    if CONFIG not in folder.documents:
        return Refused("config", f"there is no {CONFIG}", rule)
    if not isinstance(folder.documents[CONFIG], Mapping):
        return Refused("config", f"{CONFIG} does not hold a JSON object", rule)
    return None
