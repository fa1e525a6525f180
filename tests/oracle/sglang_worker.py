"""What SGLang's workers do once a drafter and its target are there, and what the built drafter understands."""

# mypy: disable-error-code="import-not-found,union-attr"

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Tokenizer:
    """A tokenizer of a hundred words, without a mask token."""

    mask_token: str | None = None
    mask_token_id: int | None = None

    def get_vocab(self) -> dict[str, int]:
        return {f"word{number}": number for number in range(100)}

    def add_special_tokens(self, added: dict[str, str]) -> int:
        self.mask_token, self.mask_token_id = added["mask_token"], 100
        return 1

    def __len__(self) -> int:
        return 101


def attach(model: Any, lender: Any, config: Any, draft_config: Any, args: Any, found: dict[str, Any]) -> None:
    """What the workers do once both models are there: sharing and their checks."""
    from sglang.srt.speculative import dflash_worker_v2, eagle_worker_v2
    from sglang.srt.speculative.dspark_components import dspark_config
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    resolved = args.resolved_dict()
    kind = SpeculativeAlgorithm.from_string(resolved["speculative_algorithm"])
    runner = SimpleNamespace(model=lender, model_config=config)
    target_worker = SimpleNamespace(model_runner=runner, tokenizer=Tokenizer())
    lent = found["lent"]
    if kind.is_eagle3():
        worker = SimpleNamespace(
            target_worker=target_worker, draft_runner=SimpleNamespace(model=model), speculative_algorithm=kind,
            hot_token_id=None, _resolve_shared_embed_and_head=lender.get_embed_and_head,
        )  # fmt: skip
        eagle_worker_v2.EagleDraftWorker.init_lm_head(worker)
        if model.model.embed_tokens.weight is lender.model.embed_tokens.weight:
            lent.append("model.embed_tokens.weight")
        if model.lm_head.weight is lender.lm_head.weight:
            lent.append("lm_head.weight")
        return
    if kind.is_dspark():
        run = dspark_config.resolve_runtime_config(
            draft_hf_config=draft_config.hf_config, target_vocab_size=config.vocab_size,
            speculative_num_draft_tokens=resolved["speculative_num_draft_tokens"],
        )  # fmt: skip
        found["mask_token"] = run.mask_token_id
        model.attach_shared_modules(embed_tokens=lender.get_input_embeddings(), lm_head=lender.lm_head)
    else:
        resolve = dflash_worker_v2.DFlashWorkerV2._resolve_mask_token_id
        worker = SimpleNamespace(target_worker=target_worker)
        told = model.draft_config
        found["mask_token"] = resolve(worker, mask_token=told.mask_token, mask_token_id=told.mask_token_id)
        model.set_block_size(int(resolved["speculative_num_draft_tokens"]))
    embedding = dflash_worker_v2._resolve_dflash_embedding_module(model, lender)
    if embedding is lender.get_input_embeddings():
        lent.append("embed_tokens.weight")
    lent.append("lm_head.weight")


def reading(model: Any, lender: Any, args: Any) -> dict[str, Any]:
    """What the built drafter understands of its config: taps, block, attention, rope, heads, norms."""
    inner = getattr(model, "model", model)
    attention = [layer.self_attn for layer in inner.layers]
    rotary = attention[0].rotary_emb
    read: dict[str, Any] = {
        "captured": list(lender.model.layers_to_capture),
        "draft_tokens": args.resolved_dict()["speculative_num_draft_tokens"],
        "windows": [int(one.attn.sliding_window_size) for one in attention],
        "attention": [one.attn.attn_type.value for one in attention],
        "rope": {"class": type(rotary).__name__, "base": float(rotary.base), "neox": bool(rotary.is_neox_style),
                 "rotary_dim": int(rotary.rotary_dim)},
    }  # fmt: skip
    told = getattr(model, "draft_config", None)
    if told is not None:
        keys = ("block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k",
                "output_multiplier", "final_logit_softcapping", "mask_token_id", "target_layer_ids")  # fmt: skip
        read["config"] = {key: getattr(told, key) for key in keys}
    if hasattr(model, "markov_head"):
        read["markov_head"] = type(model.markov_head).__name__
        read["confidence_head"] = model.confidence_head is not None
        read["gamma"], read["sample_from_anchor"] = model.gamma, bool(model.sample_from_anchor)
    if hasattr(inner, "norm_before_fc"):
        read["norms"] = {"before_fc": inner.norm_before_fc, "fc": inner.fc_norm is not None,
                         "output": bool(inner.norm_output), "features": inner.num_aux_hidden_states}  # fmt: skip
    return {"reading": read}
