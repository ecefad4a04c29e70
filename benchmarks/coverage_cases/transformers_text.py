"""Language models of transformers that are not decoders alone: rows of coverage_cases.transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.transformers import Row

VOCABULARY, BATCH, TOKENS = 120, 2, 16


def tokens(config: Any, *, labels: str = "tokens", length: int = TOKENS, types: bool = False, **extra: Any) -> dict[str, Any]:
    """Ids with padding at the end of the second sample, its mask, and labels: for each token, each sample, or a span."""
    import torch

    ids = torch.randint(5, VOCABULARY, (BATCH, length))
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, -length // 4 :] = 0
    batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if types:
        batch["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(BATCH, length).contiguous()
    if labels == "tokens":
        batch["labels"] = torch.where(mask.bool(), ids, -100)
    elif labels == "masked":
        hidden = torch.rand(ids.shape) < 0.3
        hidden[:, 1] = True
        batch["labels"] = torch.where(hidden, ids, -100)
        batch["input_ids"] = ids.masked_fill(hidden, 4)
    elif labels == "sample":
        batch["labels"] = torch.randint(0, 2, (BATCH,))
    elif labels == "classes":
        batch["labels"] = torch.randint(0, 2, (BATCH, length))
    elif labels == "span":
        batch["start_positions"], batch["end_positions"] = torch.tensor([1, 2]), torch.tensor([3, 6])
    elif labels == "choice":
        batch = {name: tensor[:, None].repeat(1, 3, 1) for name, tensor in batch.items()}
        batch["labels"] = torch.tensor([0, 2])
    return {**batch, **extra}


def pretraining(config: Any) -> dict[str, Any]:
    """BERT's own objectives: hidden words, and whether the second half follows the first."""
    import torch

    return {**tokens(config, labels="masked", types=True), "next_sentence_label": torch.tensor([0, 1])}


def translation(config: Any, *, length: int = TOKENS, mask: bool = True, **extra: Any) -> dict[str, Any]:
    """Source ids with their mask, and the ids of the target as labels, padded with -100."""
    import torch

    batch = tokens(config, labels="", length=length)
    labels = torch.randint(5, VOCABULARY, (BATCH, 9))
    labels[1, -3:] = -100
    if not mask:
        del batch["attention_mask"]
    return {**batch, "labels": labels, **extra}


def global_attention(config: Any, *, labels: str, length: int) -> dict[str, Any]:
    """Longformer's first token attends to all."""
    import torch

    batch = tokens(config, labels=labels, length=length)
    batch["global_attention_mask"] = torch.zeros(BATCH, length, dtype=torch.long)
    batch["global_attention_mask"][:, 0] = 1
    return batch


def led_batch(config: Any) -> dict[str, Any]:
    import torch

    batch = translation(config, length=32)
    batch["global_attention_mask"] = torch.zeros(BATCH, 32, dtype=torch.long)
    batch["global_attention_mask"][:, 0] = 1
    return batch


def bytes_of_text(config: Any) -> dict[str, Any]:
    """CANINE reads characters by their code points."""
    import torch

    return {"input_ids": torch.randint(32, 900, (BATCH, 64)), "attention_mask": torch.ones(BATCH, 64, dtype=torch.long),
            "labels": torch.randint(0, 2, (BATCH,))}  # fmt: skip


def layout(config: Any, *, labels: str = "classes", **extra: Any) -> dict[str, Any]:
    """Words with the boxes that they stand in on a page."""
    import torch

    corners = torch.randint(0, 400, (BATCH, TOKENS, 2))
    boxes = torch.cat([corners, corners + torch.randint(1, 500, (BATCH, TOKENS, 2))], dim=2)
    return {**tokens(config, labels=labels), "bbox": boxes, **extra}


def table_question(config: Any) -> dict[str, Any]:
    """TAPAS: a question and a flattened table; token types are segment, column, row, previous label and three ranks."""
    import torch

    batch = tokens(config, labels="", length=TOKENS)
    kinds = torch.stack([torch.randint(0, size, (BATCH, TOKENS)) for size in (2, 4, 4, 2, 3, 3, 3)], dim=2)
    labels = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    labels[:, 5] = 1
    return {**batch, "token_type_ids": kinds, "labels": labels}


def entities(config: Any) -> dict[str, Any]:
    """LUKE: two entities in each sentence, whose relation is classified."""
    import torch

    places = torch.full((BATCH, 2, 4), -1)
    places[:, 0, :2], places[:, 1, :3] = torch.tensor([2, 3]), torch.tensor([6, 7, 8])
    return {
        **tokens(config, labels=""),
        "entity_ids": torch.tensor([[1, 2]] * BATCH),
        "entity_attention_mask": torch.ones(BATCH, 2, dtype=torch.long),
        "entity_position_ids": places,
        "labels": torch.randint(0, 2, (BATCH,)),
    }


def dense_retrieval_loss(output: Any) -> Any:
    """DPR's questions are trained with the passages of the batch as negatives; here the questions stand for both."""
    import torch

    vectors = output.pooler_output
    scores = vectors @ vectors.detach().T
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def sentence_loss(output: Any) -> Any:
    return output.last_hidden_state.pow(2).mean()


# fmt: off
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "max_position_embeddings": 80}
SEQ2SEQ = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 80,
           "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
masked, whole, span = partial(tokens, labels="masked"), partial(tokens, labels="sample"), partial(tokens, labels="span")
typed = partial(tokens, labels="masked", types=True)

ROWS: dict[str, Row] = {
    "bert-mlm":          Row("BertForMaskedLM", SIZES, typed),
    "bert-pretraining":  Row("BertForPreTraining", SIZES, pretraining),
    "bert-classify":     Row("BertForSequenceClassification", SIZES, partial(tokens, labels="sample", types=True)),
    "bert-eager":        Row("BertForMaskedLM", {**SIZES, "attn_implementation": "eager"}, masked),
    "bert-choice":       Row("BertForMultipleChoice", SIZES, partial(tokens, labels="choice")),
    "roberta-tokens":    Row("RobertaForTokenClassification", SIZES, partial(tokens, labels="classes")),
    "xlm-roberta-span":  Row("XLMRobertaForQuestionAnswering", SIZES, span),
    "camembert-mlm":     Row("CamembertForMaskedLM", SIZES, masked),
    "distilbert-mlm":    Row("DistilBertForMaskedLM", {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4,
                             "hidden_dim": 64, "max_position_embeddings": 80}, masked),
    "albert-mlm":        Row("AlbertForMaskedLM", {**SIZES, "embedding_size": 16}, masked),
    "electra-discriminator": Row("ElectraForPreTraining", {**SIZES, "embedding_size": 16}, partial(tokens, labels="classes")),
    "deberta-mlm":       Row("DebertaForMaskedLM", {**SIZES, "relative_attention": True, "max_relative_positions": -1,
                             "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}, masked),
    "deberta-v2-classify": Row("DebertaV2ForSequenceClassification", {**SIZES, "relative_attention": True, "position_buckets": 8,
                             "pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm", "share_att_key": True}, whole),
    "longformer-mlm":    Row("LongformerForMaskedLM", {**SIZES, "attention_window": 8},
                             partial(global_attention, labels="masked", length=32)),
    "longformer-classify": Row("LongformerForSequenceClassification", {**SIZES, "attention_window": 8},
                             partial(tokens, labels="sample", length=32)),
    "bigbird-sparse":    Row("BigBirdForMaskedLM", {**SIZES, "max_position_embeddings": 140, "block_size": 8,
                             "num_random_blocks": 1, "attention_type": "block_sparse"},
                             partial(tokens, labels="masked", length=128)),
    "bigbird-full":      Row("BigBirdForSequenceClassification", {**SIZES, "attention_type": "original_full"}, whole),
    "funnel-mlm":        Row("FunnelForMaskedLM", {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "num_decoder_layers": 1,
                             "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}, masked),
    "fnet-mlm":          Row("FNetForMaskedLM", {**SIZES, "use_tpu_fourier_optimizations": False},
                             lambda config: {k: v for k, v in typed(config).items() if k != "attention_mask"}),
    "xlnet-classify":    Row("XLNetForSequenceClassification", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2,
                             "n_head": 4, "d_inner": 64}, whole),
    "xlm-mlm":           Row("XLMWithLMHeadModel", {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, masked),
    "flaubert-classify": Row("FlaubertForSequenceClassification", {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2,
                             "n_heads": 4}, whole),
    "mpnet-mlm":         Row("MPNetForMaskedLM", SIZES, masked),
    "mobilebert-mlm":    Row("MobileBertForMaskedLM", {**SIZES, "embedding_size": 32, "true_hidden_size": 32,
                             "intra_bottleneck_size": 32}, masked),
    "squeezebert-mlm":   Row("SqueezeBertForMaskedLM", {**SIZES, "embedding_size": 32}, masked),
    "convbert-mlm":      Row("ConvBertForMaskedLM", {**SIZES, "embedding_size": 32}, masked),
    "roformer-mlm":      Row("RoFormerForMaskedLM", {**SIZES, "embedding_size": 32}, masked),
    "rembert-mlm":       Row("RemBertForMaskedLM", {**SIZES, "input_embedding_size": 16, "output_embedding_size": 48}, masked),
    "nystromformer-mlm": Row("NystromformerForMaskedLM", {**SIZES, "num_landmarks": 4, "segment_means_seq_len": 16},
                             partial(tokens, labels="masked", attention_mask=None)),
    "ibert-classify":    Row("IBertForSequenceClassification", SIZES, whole),
    "megatron-bert-mlm": Row("MegatronBertForMaskedLM", SIZES, masked),
    "modernbert-mlm":    Row("ModernBertForMaskedLM", {**SIZES, "pad_token_id": 0, "global_attn_every_n_layers": 2,
                             "local_attention": 8}, masked),
    "nomic-bert-mlm":    Row("NomicBertForMaskedLM", SIZES, masked),
    "esm-mlm":           Row("EsmForMaskedLM", {**SIZES, "pad_token_id": 1, "mask_token_id": 4,
                             "position_embedding_type": "rotary"}, masked),
    "canine-classify":   Row("CanineForSequenceClassification", {**SIZES, "downsampling_rate": 4, "upsampling_kernel_size": 4,
                             "num_hash_functions": 4, "num_hash_buckets": 64, "local_transformer_stride": 16}, bytes_of_text),
    "luke-relation":     Row("LukeForEntityPairClassification", {**SIZES, "entity_vocab_size": 20, "entity_emb_size": 16},
                             entities),
    "dpr-question":      Row("DPRQuestionEncoder", SIZES, partial(tokens, labels=""), dense_retrieval_loss),
    "reformer-mlm":      Row("ReformerForMaskedLM", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 2,
                             "attention_head_size": 16, "feed_forward_size": 64, "attn_layers": ["local", "lsh"],
                             "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4, "num_hashes": 1,
                             "axial_pos_shape": [8, 4], "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 32,
                             "is_decoder": False}, partial(tokens, labels="masked", length=32)),
    "perceiver-mlm":     Row("PerceiverForMaskedLM", {"vocab_size": VOCABULARY, "d_model": 32, "num_latents": 8, "d_latents": 32,
                             "num_blocks": 1, "num_self_attends_per_block": 2, "num_self_attention_heads": 4,
                             "num_cross_attention_heads": 4, "max_position_embeddings": TOKENS, "qk_channels": 32,
                             "v_channels": 32}, lambda config: {"inputs": (batch := masked(config)).pop("input_ids"), **batch}),
    "splinter-span":     Row("SplinterForQuestionAnswering", {**SIZES, "question_token_id": 4}, span),
    "layoutlm-tokens":   Row("LayoutLMForTokenClassification", {**SIZES, "max_2d_position_embeddings": 1024}, layout),
    "layoutlmv3-tokens": Row("LayoutLMv3ForTokenClassification", {**SIZES, "max_2d_position_embeddings": 1024,
                             "coordinate_size": 6, "shape_size": 4, "has_relative_attention_bias": True,
                             "has_spatial_attention_bias": True, "visual_embed": False}, layout),
    "lilt-tokens":       Row("LiltForTokenClassification", {**SIZES, "hidden_size": 48, "max_2d_position_embeddings": 1024},
                             layout),
    "tapas-question":    Row("TapasForQuestionAnswering", {**SIZES, "type_vocab_sizes": [3, 16, 16, 2, 16, 16, 10],
                             "num_aggregation_labels": 0}, table_question),
    # encoder and decoder
    "t5":                Row("T5ForConditionalGeneration", T5, translation),
    "t5-gated":          Row("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}, translation),
    "mt5":               Row("MT5ForConditionalGeneration", T5, translation),
    "umt5":              Row("UMT5ForConditionalGeneration", T5, translation),
    "longt5":            Row("LongT5ForConditionalGeneration", {**T5, "local_radius": 4,
                             "encoder_attention_type": "transient-global", "global_block_size": 4}, translation),
    "bart":              Row("BartForConditionalGeneration", SEQ2SEQ, translation),
    "bart-eager":        Row("BartForConditionalGeneration", {**SEQ2SEQ, "attn_implementation": "eager"}, translation),
    "bart-classify":     Row("BartForSequenceClassification", SEQ2SEQ, lambda config: _ended(whole(config))),
    "mbart":             Row("MBartForConditionalGeneration", SEQ2SEQ, translation),
    "pegasus":           Row("PegasusForConditionalGeneration", SEQ2SEQ, translation),
    "pegasus-x":         Row("PegasusXForConditionalGeneration", {**SEQ2SEQ, "block_size": 8, "num_global_tokens": 4}, translation),
    "bigbird-pegasus":   Row("BigBirdPegasusForConditionalGeneration", {**SEQ2SEQ, "attention_type": "original_full"}, translation),
    "marian":            Row("MarianMTModel", SEQ2SEQ, translation),
    "blenderbot":        Row("BlenderbotForConditionalGeneration", SEQ2SEQ, translation),
    "m2m100":            Row("M2M100ForConditionalGeneration", SEQ2SEQ, translation),
    "led":               Row("LEDForConditionalGeneration", {**{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
                             "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 32,
                             "attention_window": 8}, led_batch),
    "plbart":            Row("PLBartForConditionalGeneration", SEQ2SEQ, translation),
    "mvp":               Row("MvpForConditionalGeneration", SEQ2SEQ, translation),
    "prophetnet":        Row("ProphetNetForConditionalGeneration", {"vocab_size": VOCABULARY, "hidden_size": 32,
                             "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_encoder_layers": 2, "num_decoder_layers": 2,
                             "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "ngram": 2,
                             "max_position_embeddings": 80}, translation),
}
# fmt: on


def _ended(batch: dict[str, Any]) -> dict[str, Any]:
    """BART classifies by the end-of-text token, which each sample has once."""
    batch["input_ids"][:, -5] = 2
    return batch
