"""Audio models and time series of transformers: rows of coverage_cases.transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.transformers import Row

BATCH, CLASSES, VOCABULARY, SAMPLES = 2, 3, 32, 1600


def speech(config: Any, *, labels: str = "text", name: str = "input_values", **extra: Any) -> dict[str, Any]:
    """Waveforms, the second shorter, with the characters of a transcript or a class."""
    import torch

    mask = torch.ones(BATCH, SAMPLES, dtype=torch.long)
    mask[1, -SAMPLES // 5 :] = 0
    batch: dict[str, Any] = {name: torch.randn(BATCH, SAMPLES), "attention_mask": mask}
    if labels == "text":
        batch["labels"] = torch.randint(1, VOCABULARY, (BATCH, 4))
        batch["labels"][1, -1] = -100
    elif labels == "sample":
        batch["labels"] = torch.randint(0, 2, (BATCH,))
    return {**batch, **extra}


def pretraining(config: Any) -> dict[str, Any]:
    """wav2vec 2.0: hidden frames, and the frames of the same clip that they are told apart from."""
    import numpy as np
    import torch
    from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices, _sample_negative_indices

    frames = SAMPLES
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        frames = (frames - kernel) // stride + 1
    np.random.seed(0)  # noqa: NPY002  # what these functions read
    hidden = _compute_mask_indices((BATCH, frames), mask_prob=0.3, mask_length=2)
    negatives = _sample_negative_indices((BATCH, frames), config.num_negatives, hidden)
    return {"input_values": torch.randn(BATCH, SAMPLES), "mask_time_indices": torch.tensor(hidden),
            "sampled_negative_indices": torch.tensor(negatives)}  # fmt: skip


def spectrogram(config: Any, *, frames: int, bins: int, name: str = "input_values", labels: str = "sample") -> dict[str, Any]:
    import torch

    batch: dict[str, Any] = {name: torch.randn(BATCH, frames, bins)}
    if labels == "sample":
        batch["labels"] = torch.randint(0, 2, (BATCH,))
    return batch


def whisper(config: Any, *, labels: str = "text") -> dict[str, Any]:
    import torch

    batch: dict[str, Any] = {"input_features": torch.randn(BATCH, 8, 64)}
    batch["labels"] = torch.randint(5, VOCABULARY, (BATCH, 9)) if labels == "text" else torch.randint(0, 2, (BATCH,))
    return batch


def translated_speech(config: Any) -> dict[str, Any]:
    """Filter banks with a mask of frames, and the ids of the text."""
    import torch

    mask = torch.ones(BATCH, 40, dtype=torch.long)
    mask[1, -8:] = 0
    return {"input_features": torch.randn(BATCH, 40, 8), "attention_mask": mask, "labels": torch.randint(5, VOCABULARY, (BATCH, 9))}


def speech_from_text(config: Any) -> dict[str, Any]:
    """SpeechT5 for synthesis: characters in, a spectrogram as the target, a vector for the speaker."""
    import torch

    return {
        "input_ids": torch.randint(5, VOCABULARY, (BATCH, 12)),
        "attention_mask": torch.ones(BATCH, 12, dtype=torch.long),
        "labels": torch.randn(BATCH, 8, config.num_mel_bins),
        "speaker_embeddings": torch.randn(BATCH, config.speaker_embedding_dim),
    }


def sound_and_text(config: Any) -> dict[str, Any]:
    import torch

    return {
        "input_ids": torch.randint(5, VOCABULARY, (BATCH, 12)),
        "attention_mask": torch.ones(BATCH, 12, dtype=torch.long),
        "input_features": torch.randn(BATCH, 1, 64, 16),
        "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool),
        "return_loss": True,
    }


def series(config: Any, *, history: int = 14) -> dict[str, Any]:
    """The past of a series with its features of time, and the future that is to be predicted."""
    import torch

    features = config.num_time_features
    return {
        "past_values": torch.rand(BATCH, history),
        "past_time_features": torch.rand(BATCH, history, features),
        "past_observed_mask": torch.ones(BATCH, history),
        "static_categorical_features": torch.randint(0, 3, (BATCH, 1)),
        "future_values": torch.rand(BATCH, config.prediction_length),
        "future_time_features": torch.rand(BATCH, config.prediction_length, features),
        "future_observed_mask": torch.ones(BATCH, config.prediction_length),
    }


def patches_of_series(config: Any, *, target: str = "future_values") -> dict[str, Any]:
    import torch

    batch: dict[str, Any] = {"past_values": torch.randn(BATCH, 32, 3)}
    if target == "future_values":
        batch[target] = torch.randn(BATCH, 8, 3)
    elif target == "target_values":
        batch[target] = torch.randint(0, 2, (BATCH,))
    return batch


def forecast(config: Any) -> dict[str, Any]:
    import torch

    return {"past_values": [torch.randn(64), torch.randn(64)], "freq": torch.tensor([0, 0]),
            "future_values": torch.randn(BATCH, config.horizon_length)}  # fmt: skip


def clap() -> Any:
    from transformers import ClapConfig

    text = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
            "max_position_embeddings": 40}  # fmt: skip
    audio = {"spec_size": 32, "num_mel_bins": 16, "patch_size": 2, "patch_stride": [2, 2], "window_size": 4, "depths": [1, 1],
             "num_attention_heads": [2, 2], "hidden_size": 16, "patch_embeds_hidden_size": 8, "freq_ratio": 2,
             "num_classes": 3}  # fmt: skip
    return ClapConfig(text_config=text, audio_config=audio, projection_dim=16)


def spoken_text() -> Any:
    from transformers import BertConfig, SpeechEncoderDecoderConfig, Wav2Vec2Config

    decoder = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=40, is_decoder=True, add_cross_attention=True,
    )  # fmt: skip
    config = SpeechEncoderDecoderConfig.from_encoder_decoder_configs(Wav2Vec2Config(**WAVES), decoder)
    config.decoder_start_token_id, config.pad_token_id = 0, 0
    return config


# fmt: off
WAVES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "conv_dim": [16, 16, 16], "conv_stride": [5, 4, 2], "conv_kernel": [10, 4, 2], "num_feat_extract_layers": 3,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2, "num_labels": CLASSES,
         "ctc_zero_infinity": True}
WHISPER = {"vocab_size": VOCABULARY, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
           "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
           "max_source_positions": 32, "max_target_positions": 16, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
           "decoder_start_token_id": 4, "begin_suppress_tokens": None, "num_labels": CLASSES}
SERIES = {"prediction_length": 4, "context_length": 10, "lags_sequence": [1, 2, 3, 4], "num_time_features": 2, "d_model": 16,
          "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
          "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_static_categorical_features": 1, "cardinality": [3],
          "embedding_dimension": [2]}
PATCHED = {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 8,
           "num_targets": 2}
spoken, class_of = speech, partial(speech, labels="sample")

ROWS: dict[str, Row] = {
    "wav2vec2-ctc":      Row("Wav2Vec2ForCTC", WAVES, spoken),
    "wav2vec2-classify": Row("Wav2Vec2ForSequenceClassification", WAVES, class_of),
    "wav2vec2-pretraining": Row("Wav2Vec2ForPreTraining", {**WAVES, "num_negatives": 4, "codevector_dim": 16,
                             "proj_codevector_dim": 16, "num_codevectors_per_group": 8}, pretraining),
    "wav2vec2-conformer": Row("Wav2Vec2ConformerForCTC", {**WAVES, "conv_depthwise_kernel_size": 7}, spoken),
    "hubert-ctc":        Row("HubertForCTC", WAVES, spoken),
    "hubert-classify":   Row("HubertForSequenceClassification", WAVES, class_of),
    "wavlm-ctc":         Row("WavLMForCTC", {**WAVES, "num_buckets": 16, "max_bucket_distance": 32}, spoken),
    "sew-ctc":           Row("SEWForCTC", {**WAVES, "squeeze_factor": 2}, spoken),
    "sew-d-ctc":         Row("SEWDForCTC", {**WAVES, "squeeze_factor": 2, "max_position_embeddings": 64, "position_buckets": 16},
                             spoken),
    "unispeech-ctc":     Row("UniSpeechForCTC", {**WAVES, "num_ctc_classes": VOCABULARY}, spoken),
    "unispeech-sat-classify": Row("UniSpeechSatForSequenceClassification", WAVES, class_of),
    "data2vec-audio-ctc": Row("Data2VecAudioForCTC", {**WAVES, "conv_pos_kernel_size": 5, "num_conv_pos_embeddings": 2}, spoken),
    "ast":               Row("ASTForAudioClassification", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                             "intermediate_size": 64, "max_length": 32, "num_mel_bins": 32, "num_labels": CLASSES},
                             partial(spectrogram, frames=32, bins=32)),
    "whisper":           Row("WhisperForConditionalGeneration", WHISPER, whisper),
    "whisper-augmented": Row("WhisperForConditionalGeneration", {**WHISPER, "apply_spec_augment": True, "mask_time_length": 2,
                             "mask_time_prob": 0.3}, whisper),
    "whisper-classify":  Row("WhisperForAudioClassification", WHISPER, partial(whisper, labels="sample")),
    "moonshine":         Row("MoonshineForConditionalGeneration", {"vocab_size": VOCABULARY, "hidden_size": 32,
                             "intermediate_size": 64, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
                             "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
                             "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}, spoken),
    "speech2text":       Row("Speech2TextForConditionalGeneration", {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2,
                             "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
                             "decoder_ffn_dim": 64, "input_feat_per_channel": 8, "conv_channels": 32, "max_source_positions": 64,
                             "max_target_positions": 32}, translated_speech),
    "speecht5-tts":      Row("SpeechT5ForTextToSpeech", {"vocab_size": VOCABULARY, "hidden_size": 32, "encoder_layers": 2,
                             "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
                             "decoder_ffn_dim": 64, "num_mel_bins": 8, "speech_decoder_prenet_units": 16, "reduction_factor": 2,
                             "speaker_embedding_dim": 16, "speech_decoder_postnet_units": 16, "guided_attention_loss_num_heads": 2},
                             speech_from_text),
    "clap":              Row("ClapModel", clap, sound_and_text),
    "speech-encoder-decoder": Row("SpeechEncoderDecoderModel", spoken_text, spoken),
    # time series
    "time-series-transformer": Row("TimeSeriesTransformerForPrediction", SERIES, series),
    "informer":          Row("InformerForPrediction", {**SERIES, "sampling_factor": 2}, series),
    "autoformer":        Row("AutoformerForPrediction", {**SERIES, "label_length": 5, "moving_average": 3}, series),
    "patchtst":          Row("PatchTSTForPrediction", {**PATCHED, "d_model": 16, "num_attention_heads": 2, "ffn_dim": 32,
                             "num_hidden_layers": 2}, patches_of_series),
    "patchtst-pretraining": Row("PatchTSTForPretraining", {**PATCHED, "d_model": 16, "num_attention_heads": 2, "ffn_dim": 32,
                             "num_hidden_layers": 2, "do_mask_input": True, "random_mask_ratio": 0.4},
                             partial(patches_of_series, target="")),
    "patchtst-classify": Row("PatchTSTForClassification", {**PATCHED, "d_model": 16, "num_attention_heads": 2, "ffn_dim": 32,
                             "num_hidden_layers": 2}, partial(patches_of_series, target="target_values")),
    "patchtsmixer":      Row("PatchTSMixerForPrediction", {**PATCHED, "d_model": 8, "num_layers": 2}, patches_of_series),
    "timesfm":           Row("TimesFmModelForPrediction", {"patch_length": 8, "context_length": 64, "horizon_length": 8,
                             "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8,
                             "num_attention_heads": 4, "quantiles": [0.1, 0.5, 0.9]}, forecast),
}
# fmt: on
