"""The front matter of a card, as huggingface_hub reads it."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard

from convertkit.demo.generate import generate
from convertkit.verbs.case import Options
from convertkit.verbs.release import release
from convertkit.verbs.release_init import release_init


def test_the_hub_reads_the_front_matter(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "drafter", on_grid=True)
    release_init(tmp_path / "drafter", target_id="Qwen/Qwen3.8-27B", output=tmp_path / "recipe.toml")
    text = (tmp_path / "recipe.toml").read_text()
    assert 'license = "apache-2.0"' in text
    (tmp_path / "recipe.toml").write_text(
        text.replace('# base_model_relation = "finetune"', 'base_model_relation = "finetune"')
    )
    release(tmp_path / "recipe.toml", tmp_path / "out", options=Options(workers=2))
    for card in (tmp_path / "out" / "README.md", tmp_path / "out" / "bf16" / "README.md"):
        data = ModelCard.load(card).data
        assert data.license == "apache-2.0"
        assert data.base_model == ["Qwen/Qwen3.8-27B"]
        assert data.base_model_relation == "finetune"
        assert data.library_name == "vllm"
        assert data.pipeline_tag == "text-generation"
        assert data.tags == ["nvfp4", "speculative-decoding", "dflash2"]


def test_a_licence_is_never_guessed(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "drafter")
    (tmp_path / "drafter" / "README.md").write_text("license: mit\n")
    assert '# license = "apache-2.0"' in release_init(tmp_path / "drafter")
    (tmp_path / "drafter" / "README.md").write_text('---\nlicense: "cc-by-4.0"\n---\n')
    assert '\nlicense = "cc-by-4.0"' in release_init(tmp_path / "drafter")
