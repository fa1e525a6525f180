"""Every finding code, its exit status and its meaning: the table behind ``docs/errors.md``.

Status: 1 a check said no, 2 usage, 3 input not acceptable, 4 could not read or write, 5 output refused,
6 files of an earlier release, 70 internal error. Codes never change their meaning once released.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """Exit status when the finding stops the work, and one sentence of meaning."""

    status: int
    meaning: str


CODES: dict[str, Code] = {
    # files and paths
    "E_NOT_FOUND": Code(3, "The path does not exist."),
    "E_READ": Code(4, "The operating system refused to read a file."),
    "E_CHANGED": Code(4, "A source file changed while it was read."),
    "E_NOT_REGULAR": Code(3, "A file that must be regular is a folder, FIFO, socket or device."),
    "E_PATH_ESCAPE": Code(3, "A symbolic link leads out of the checkpoint folder."),
    "E_PATH_LOOP": Code(3, "A symbolic link leads back to itself."),
    "E_PATH_CASE": Code(3, "Two names differ only in case and would be one file on some disks."),
    "E_NO_WEIGHTS": Code(3, "The folder holds no weights that convertkit reads."),
    "E_AMBIGUOUS_WEIGHTS": Code(3, "The folder holds more than one model."),
    # safetensors
    "E_ST_TRUNCATED": Code(3, "The file ends before its header or a tensor does."),
    "E_ST_HEADER_TOO_LARGE": Code(3, "The header is longer than 100,000,000 bytes."),
    "E_ST_HEADER": Code(3, "The header is not one strict JSON object followed by spaces."),
    "E_ST_UTF8": Code(3, "The header is not valid UTF-8."),
    "E_ST_DUP_KEY": Code(3, "A name occurs twice in the header."),
    "E_ST_METADATA": Code(3, "The metadata is not a flat map of strings."),
    "E_ST_DTYPE": Code(3, "A dtype is unknown."),
    "E_ST_FIELD": Code(3, "A tensor entry lacks a field or has an unknown one."),
    "E_ST_SHAPE": Code(3, "A shape is not a list of non-negative integers."),
    "E_ST_OVERFLOW": Code(3, "A shape has more elements than any file can hold."),
    "E_ST_OFFSETS": Code(3, "Data offsets are not two ordered non-negative integers."),
    "E_ST_SIZE": Code(3, "A tensor's byte range does not fit its dtype and shape."),
    "E_ST_OVERLAP": Code(3, "Two tensors share bytes."),
    "E_ST_HOLE": Code(3, "Bytes between tensors belong to no tensor."),
    "E_ST_TRAILING": Code(3, "Bytes after the last tensor belong to no tensor."),
    "E_ST_SUBBYTE": Code(3, "A sub-byte tensor is not a whole number of bytes."),
    "E_ST_NAME": Code(3, "A tensor name is empty, too long or holds control characters."),
    "E_ST_COUNT": Code(3, "A file holds more tensors than convertkit reads."),
    "E_ST_NOT_SAFETENSORS": Code(3, "The file is of another format."),
    "W_ST_PADDING": Code(0, "The header is padded with white space other than spaces."),
    # JSON, index, config
    "E_JSON": Code(3, "A JSON file is not strict JSON, or too deep."),
    "E_JSON_DUP_KEY": Code(3, "A key occurs twice in one JSON object."),
    "E_INDEX": Code(3, "The shard index is not of the form that readers expect."),
    "E_INDEX_PATH": Code(3, "The shard index names something that is not a plain file name."),
    "E_INDEX_MISMATCH": Code(3, "The shard index and the shards disagree about a tensor."),
    "E_SHARD_MISSING": Code(3, "A shard that the index names is not there."),
    "E_INDEX_TOTAL": Code(1, "The index states a total size that is not that of the tensors."),
    "W_INDEX_TOTAL": Code(0, "The index states a total size that is not that of the tensors; outputs state the right one."),
    "E_SHARD_UNLISTED": Code(1, "A weight file lies beside the index and is not listed in it."),
    "W_SHARD_UNLISTED": Code(0, "A weight file lies beside the index and is not listed in it; it is not read."),
    "E_CONFIG": Code(3, "A config field has a value of the wrong kind."),
    "W_NO_CONFIG": Code(0, "The folder has no config.json."),
    # quantization
    "E_QCONFIG": Code(3, "The quantization config is malformed or not supported."),
    "E_QCONFIG_MISMATCH": Code(3, "The quantization config and the stored tensors disagree."),
    "E_PACK_MISSING": Code(3, "A quantized weight lacks one of its planes."),
    "E_PACK_AMBIGUOUS": Code(3, "A module has a dense weight and planes."),
    "E_PACK_DTYPE": Code(3, "A plane has the wrong dtype."),
    "E_PACK_SHAPE": Code(3, "A plane has the wrong shape."),
    "E_SCALE_SHAPE": Code(3, "A scale has the wrong shape."),
    "E_SCALE_DTYPE": Code(3, "A scale has the wrong dtype."),
    "E_SCALE_NONFINITE": Code(3, "A scale is NaN or infinite."),
    "E_SCALE_ZERO": Code(3, "A scale is zero where that loses or divides by zero."),
    "E_SCALE_SIGN": Code(3, "A scale is negative."),
    "E_SCALE_RANGE": Code(3, "A global scale is so small or large that its reciprocal is not finite."),
    "E_NONFINITE_OUTPUT": Code(3, "Expanding a weight gives infinite values in the output type."),
    "E_WEIGHT_NONFINITE": Code(3, "A weight to be quantized holds NaN or infinity."),
    "E_WIDTH": Code(3, "A weight's input width is not a multiple of 16."),
    "E_WEIGHT_DTYPE": Code(3, "A weight to be quantized is not BF16, F16 or F32."),
    "E_WEIGHT_RANK": Code(3, "A weight to be quantized is not a matrix."),
    "E_ALREADY_QUANTIZED": Code(3, "The source is quantized already."),
    "E_NOT_QUANTIZED": Code(3, "The source holds no quantized weight."),
    "E_UNSUPPORTED_QUANT": Code(3, "The source uses a quantization that convertkit cannot read."),
    # selection, naming, conversion
    "E_PATTERN_EMPTY": Code(2, "A pattern matches nothing."),
    "E_PATTERN": Code(2, "A pattern is malformed."),
    "E_POLICY_UNKNOWN": Code(2, "No default policy is known for this kind of model."),
    "E_USAGE": Code(2, "The command's words do not fit together."),
    "E_NEEDS_TARGET": Code(2, "The conversion needs the target model."),
    "E_NAME_COLLISION": Code(3, "Two tensors would get the same name."),
    "E_LOSS": Code(3, "The target format cannot express something that the source states."),
    "E_PLUGIN": Code(2, "A plug-in could not be loaded."),
    # output
    "E_OUT_IS_IN": Code(5, "The output is the source."),
    "E_OUT_INSIDE_IN": Code(5, "The output lies inside the source, or the source inside the output."),
    "E_OUT_EXISTS": Code(5, "The output exists."),
    "E_OUT_LOCKED": Code(5, "Another run is writing the same output."),
    "E_OUT_PARENT": Code(4, "The folder that would hold the output is missing or read-only."),
    "E_NO_SPACE": Code(4, "The disk is full, or will be."),
    "E_WRITE": Code(4, "The operating system refused to write."),
    "E_RESUME": Code(5, "There is nothing to resume, or it belongs to another plan."),
    "E_INTERRUPTED": Code(130, "The run was interrupted: 130 by SIGINT, 143 by SIGTERM, 129 by SIGHUP."),
    "E_OS": Code(4, "The operating system refused a file operation."),
    "E_MEMORY": Code(4, "The machine has not enough memory."),
    # promises, gates, audits
    "E_PROMISE": Code(70, "The written file does not keep a promise of the plan: a bug in convertkit."),
    "E_GATE": Code(1, "A fidelity threshold is not met."),
    "E_AUDIT": Code(1, "The audit found an error in what was written."),
    "E_AGAINST": Code(1, "The output differs from the reference."),
    "E_REFERENCE": Code(3, "The reference does not hold the same tensors."),
    "E_SCHEMA": Code(70, "A report does not validate against its schema: a bug in convertkit."),
    "E_INTERNAL": Code(70, "An error that convertkit did not foresee."),
}
