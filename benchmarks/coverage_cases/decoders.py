"""Causal language models of transformers, tiny and with random weights, called as a training loop calls them.

A row is the library's name of the architecture and what its configuration changes. Every model is trained on ids that are their own
labels: with or without a padded attention mask, with the cache that the configuration leaves on or with `use_cache=False`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.case import Case, Training

TOKENS = {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    **TOKENS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
MULTI_HEAD = {**LLAMA, "num_key_value_heads": 4}
HEAD = {"head_dim": 8}
GPT = {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}

# fmt: off
FOUR_CALLS: dict[str, dict[str, Any]] = {
    "gpt2":       GPT,
    "gpt_neox":   {**TOKENS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "opt":        {**TOKENS, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "word_embed_proj_dim": 32},
    "llama":      LLAMA,
    "mistral":    {**LLAMA, **HEAD, "sliding_window": 8},
    "qwen2":      LLAMA,
    "qwen3":      {**LLAMA, **HEAD},
    "gemma":      {**LLAMA, **HEAD},
    "gemma2":     {**LLAMA, **HEAD, "sliding_window": 8},
    "gemma3_text": {**LLAMA, **HEAD, "sliding_window": 8},
    "phi":        MULTI_HEAD,
    "phi3":       LLAMA,
    "falcon":     {**TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "bloom":      {**TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "olmo":       LLAMA,
    "olmo2":      LLAMA,
    "mamba":      {**TOKENS, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
    "rwkv":       {**TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "context_length": 64},
    "qwen3_next": {**LLAMA, **HEAD, **DELTA, **EXPERTS},
}
TWO_CALLS: dict[str, dict[str, Any]] = {
    "gpt_neo":     {**TOKENS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                    "window_size": 8, "max_position_embeddings": 64},
    "gptj":        {**GPT, "rotary_dim": 4},
    "codegen":     {**GPT, "rotary_dim": 4},
    "gpt_bigcode": GPT,
    "openai-gpt":  GPT,
    "mpt":         {**TOKENS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "xglm":        {**TOKENS, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 64},
    "biogpt":      MULTI_HEAD,
    "persimmon":   MULTI_HEAD,
    "stablelm":    LLAMA,
    "starcoder2":  LLAMA,
    "cohere":      LLAMA,
    "cohere2":     {**LLAMA, "sliding_window": 8},
    "granite":     LLAMA,
    "glm":         {**LLAMA, **HEAD},
    "glm4":        {**LLAMA, **HEAD},
    "nemotron":    LLAMA,
    "helium":      {**LLAMA, **HEAD},
    "smollm3":     LLAMA,
    "olmo3":       {**LLAMA, "sliding_window": 8},
    "ernie4_5":    {**LLAMA, **HEAD},
    "exaone4":     {**LLAMA, "sliding_window": 8},
    "hunyuan_v1_dense": {**LLAMA, **HEAD},
    "arcee":       {**LLAMA, **HEAD},
    "seed_oss":    {**LLAMA, **HEAD},
    "apertus":     LLAMA,
    "diffllama":   LLAMA,
    "vaultgemma":  {**LLAMA, **HEAD, "sliding_window": 8},
    "bitnet":      LLAMA,
    "modernbert-decoder": {**MULTI_HEAD, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
    "doge":        {**LLAMA, "num_experts": 16},
    "mamba2":      {**TOKENS, "hidden_size": 32, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2,
                    "num_hidden_layers": 2, "chunk_size": 8},
    "falcon_mamba": {**TOKENS, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
    "recurrent_gemma": {**LLAMA, **HEAD, "lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
    "xlstm":       {**TOKENS, "hidden_size": 32, "num_blocks": 2, "num_hidden_layers": 2, "num_heads": 4, "chunk_size": 8,
                    "use_cache": False},
    "zamba2":      {**MULTI_HEAD, **MAMBA, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 8, "num_hidden_layers": 3,
                    "layers_block_type": ["mamba", "hybrid", "mamba"], "num_mem_blocks": 1, "use_shared_attention_adapter": False,
                    "attention_head_dim": 8, "hybrid_layer_ids": [1]},
    "bamba":       {**LLAMA, **MAMBA, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8,
                    "attn_layer_indices": [1]},
    "lfm2":        {**LLAMA, "full_attn_idxs": [1]},
    "qwen3_5_text": {**LLAMA, **HEAD, **DELTA},
    "nemotron_h":  {**LLAMA, **HEAD, "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8,
                    "hybrid_override_pattern": "M*", "layers_block_type": ["mamba", "attention"]},
    "ctrl":        {**GPT, "dff": 64},
    "xlnet":       {**TOKENS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
}
# fmt: on

CALLS: dict[str, tuple[bool, bool]] = {  # attention mask, use_cache=False
    "ids": (False, False),
    "mask": (True, False),
    "ids, no cache": (False, True),
    "mask, no cache": (True, True),
}


def build(architecture: str, changes: dict[str, Any], *, mask: bool, without_cache: bool, **settings: Any) -> Training:
    """A model of this architecture with a batch of two sequences of sixteen ids."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **changes), **settings)
    model.train()
    ids = torch.randint(3, 128, (2, 16))
    inputs: dict[str, Any] = {"input_ids": ids, "labels": ids.clone()}
    if mask:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][1, 12:] = 0
        inputs["labels"][1, 12:] = -100
    if without_cache:
        inputs["use_cache"] = False
    return Training(model, inputs, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4))


def cases() -> list[Case]:
    rows = [(name, changes, call) for name, changes in FOUR_CALLS.items() for call in CALLS]
    rows += [(name, changes, call) for name, changes in TWO_CALLS.items() for call in ("ids, no cache", "mask")]
    calls = [
        Case("decoders", f"{name}: {call}", partial(build, name, changes, mask=CALLS[call][0], without_cache=CALLS[call][1]))
        for name, changes, call in rows
    ]
    attention = [
        Case(
            "decoders", f"{name}: {form} attention",
            partial(build, name, FOUR_CALLS[name], mask=True, without_cache=True, attn_implementation=form),
        )
        for name in ("llama", "gpt2", "mistral") for form in ("eager", "sdpa")
    ]  # fmt: skip
    return calls + attention
