"""Mixtures of experts of transformers, tiny and with random weights.

Every model is trained in fp32 and in bf16, with each form of its experts that the library offers: a loop over the experts
(`eager`), one grouped product (`grouped_mm`, the library's default), and one product a token (`batched_mm`) for the commonest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.case import Case, Training
from coverage_cases.decoders import DELTA, HEAD, LLAMA, MAMBA, MULTI_HEAD, TOKENS

ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    **MULTI_HEAD, "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
                  "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
STATE_SPACE = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}

# fmt: off
MODELS: dict[str, dict[str, Any]] = {
    "mixtral":      {**LLAMA, **LOCAL},
    "qwen2_moe":    {**LLAMA, **ROUTED, "shared_expert_intermediate_size": 16},
    "qwen3_moe":    {**LLAMA, **HEAD, **ROUTED},
    "deepseek_v2":  {**DEEPSEEK, "topk_method": "group_limited_greedy"},
    "deepseek_v3":  DEEPSEEK,
    "gpt_oss":      {**LLAMA, **HEAD, **LOCAL, "sliding_window": 8},
    "olmoe":        {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
    "phimoe":       {**LLAMA, **LOCAL},
    "granitemoe":   {**LLAMA, **LOCAL},
    "granitemoeshared": {**LLAMA, **LOCAL, "shared_intermediate_size": 16},
    "granitemoehybrid": {**LLAMA, **LOCAL, **MAMBA, **STATE_SPACE, "shared_intermediate_size": 16, "layer_types": ["mamba",
                         "attention"]},
    "llama4_text":  {**LLAMA, **HEAD, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 64,
                     "interleave_moe_layer_step": 1, "attention_chunk_size": 8},
    "jamba":        {**LLAMA, **MAMBA, "num_experts": 4, "num_experts_per_tok": 2, "mamba_dt_rank": 4, "attn_layer_offset": 1,
                     "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2, "use_mamba_kernels": False},
    "dbrx":         {**TOKENS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "attn_config": {"kv_n_heads": 2,
                     "clip_qkv": 8, "rope_theta": 1e4},
                     "ffn_config": {"ffn_hidden_size": 32, "hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    "jetmoe":       {**LLAMA, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe":     {**LLAMA, **HEAD, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
                     "n_shared_experts": 1, "first_k_dense_replace": 1},
    "ernie4_5_moe": {**LLAMA, "moe_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1,
                     "moe_layer_start_index": 1},
    "dots1":        {**LLAMA, **HEAD, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
                     "n_shared_experts": 1, "first_k_dense_replace": 1},
    "minimax":      {**LLAMA, **HEAD, **LOCAL, "block_size": 8, "layer_types": ["linear_attention", "full_attention"]},
    "minimax_m2":   {**LLAMA, **HEAD, **LOCAL},
    "flex_olmo":    {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
    "longcat_flash": {**DEEPSEEK, **HEAD, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 16, "moe_topk": 2, "zero_expert_num": 2,
                      "num_layers": 2},
    "hunyuan_v1_moe": {**LLAMA, **HEAD, "num_experts": 4, "moe_topk": 2},
    "lfm2_moe":     {**LLAMA, **ROUTED, "full_attn_idxs": [1], "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "qwen3_next":   {**LLAMA, **HEAD, **DELTA, **ROUTED, "shared_expert_intermediate_size": 16},
    "qwen3_5_moe_text": {**LLAMA, **HEAD, **DELTA, **ROUTED, "shared_expert_intermediate_size": 16},
    "afmoe":        {**LLAMA, **HEAD, **ROUTED, "num_shared_experts": 1, "num_dense_layers": 1, "global_attn_every_n_layers": 2,
                     "sliding_window": 8},
    "cohere2_moe":  {**LLAMA, **HEAD, **ROUTED},
}
FORMS = ("eager", "grouped_mm")
EVERY_FORM = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss")
ONE_FORM = ("llama4_text", "dbrx", "jetmoe", "longcat_flash")  # the library has no other for them
# fmt: on


def build(architecture: str, changes: dict[str, Any], precision: str, form: str) -> Training:
    """The model in one precision with one form of its experts; the load balancing loss is on where the model has one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **changes)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, precision), experts_implementation=form).train()
    ids = torch.randint(3, 128, (2, 16))
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if hasattr(config, "router_aux_loss_coef"):
        inputs["output_router_logits"] = True
    return Training(model, inputs, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4))


def cases() -> list[Case]:
    return [
        Case("experts", f"{name}: {precision}, {form}", partial(build, name, changes, precision, form))
        for name, changes in MODELS.items()
        for precision in ("float32", "bfloat16")
        for form in ((*FORMS, "batched_mm") if name in EVERY_FORM else FORMS[:1] if name in ONE_FORM else FORMS)
    ]
