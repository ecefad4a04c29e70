"""The zoo's table: every model by name, where it is built and how many parameters its publication states.

Kept free of torch, so that `trainyard list` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. `parameters` is what our model has, exactly; `published` what the publication prints, `within` its rounding."""

    name: str
    module: str
    function: str
    batch: int
    family: str
    parameters: int
    published: float | None
    within: float
    source: str
    note: str = ""


# fmt: off
# Batches: 8 is IGO's on its large accelerator and 4 on its small one (Sec. 6.1); MC-DLA trains its networks with 512
# (Sec. IV). Detectors take what their papers give one device. `googlenet` and `mobilenet` follow their publications; the
# 62 M and 13 M of IGO's Table 4 fit no GoogLeNet and no MobileNet (they are near AlexNet's and GoogLeNet's with its side heads).
VISION: tuple[Entry, ...] = (
    Entry(
        name="alexnet", module="vision.alexnet", function="alexnet", batch=8, family="classification",
        parameters=61_100_840, published=61_100_840, within=0.0,
        source="torch's model table: 61,100,840",
        note="one tower (Krizhevsky 2014); the two towers of NIPS 2012 print 60 M",
    ),
    Entry(
        name="vgg16", module="vision.vgg", function="vgg16", batch=8, family="classification",
        parameters=138_357_544, published=138e6, within=0.004,
        source="Simonyan and Zisserman 2015, Table 2: 138 M (D)",
    ),
    Entry(
        name="vgg19", module="vision.vgg", function="vgg19", batch=8, family="classification",
        parameters=143_667_240, published=144e6, within=0.004,
        source="Simonyan and Zisserman 2015, Table 2: 144 M (E)",
        note="VGG-E of MC-DLA's Table III",
    ),
    Entry(
        name="googlenet", module="vision.googlenet", function="googlenet", batch=8, family="classification",
        parameters=6_998_552, published=6797.7 * 1024, within=0.006,
        source="Szegedy et al. 2015, Table 1: its rows sum to 6797.7 K (of 1024), biases left out",
        note="without side classifiers; conv1 is printed as 2.7 K and has 9.2 K; IGO's Table 4 prints 62 M",
    ),
    Entry(
        name="googlenet-aux", module="vision.googlenet", function="googlenet_aux", batch=8, family="classification",
        parameters=13_378_280, published=53_533_754 / 4, within=0.0005,
        source="Caffe's released bvlc_googlenet: 53,533,754 bytes of 4-byte weights",
        note="with both side classifiers, as it was trained",
    ),
    Entry(
        name="resnet18", module="vision.resnet", function="resnet18", batch=8, family="classification",
        parameters=11_689_512, published=11_689_512, within=0.0,
        source="torch's model table: 11,689,512",
    ),
    Entry(
        name="resnet34", module="vision.resnet", function="resnet34", batch=8, family="classification",
        parameters=21_797_672, published=21_797_672, within=0.0,
        source="torch's model table: 21,797,672",
        note="the ResNet of MC-DLA's Table III",
    ),
    Entry(
        name="resnet50", module="vision.resnet", function="resnet50", batch=8, family="classification",
        parameters=25_557_032, published=25_557_032, within=0.0,
        source="torch's model table: 25,557,032; IGO, Table 4: 25 M",
        note="stride in the 3 x 3 convolutions",
    ),
    Entry(
        name="squeezenet", module="vision.squeezenet", function="squeezenet", batch=8, family="classification",
        parameters=1_248_424, published=1_248_424, within=0.0,
        source="Iandola et al. 2016, Table 1: 1,248,424",
        note="version 1.0, before pruning",
    ),
    Entry(
        name="mobilenet", module="vision.mobilenet", function="mobilenet", batch=8, family="classification",
        parameters=4_231_976, published=4.2e6, within=0.012,
        source="Howard et al. 2017, Table 4: 4.2 M",
        note="version 1, width 1; IGO's Table 4 prints 13 M",
    ),
    Entry(
        name="yolov2-tiny", module="vision.yolov2", function="yolov2_tiny", batch=4, family="detection",
        parameters=11_232_057, published=11e6, within=0.046,
        source="IGO, Table 4: 11 M",
        note="COCO head (80 classes, 5 anchors); the VOC network has 15.9 M",
    ),
    Entry(
        name="yolov5l", module="vision.yolov5", function="yolov5l", batch=8, family="detection",
        parameters=46_563_709, published=46.5e6, within=0.002,
        source="Ultralytics' table, release 6: 46.5 M; IGO, Table 4: 47 M",
    ),
    Entry(
        name="faster-rcnn", module="vision.faster_rcnn", function="faster_rcnn", batch=1, family="detection",
        parameters=29_137_091, published=None, within=0.0,
        source="Ren et al. 2015, one image per device; He et al. 2016, App. A",
        note="ResNet-50 C4; normalisation constants not counted, 222,400 weights frozen; no printed count for this head",
    ),
    Entry(
        name="faster-rcnn-mobilenet", module="vision.faster_rcnn_mobilenet", function="faster_rcnn_mobilenet", batch=8,
        family="detection",
        parameters=19_386_354, published=19_386_354, within=0.0,
        source="torch's model table: 19,386,354; IGO, Table 4: 19 M",
        note="MobileNetV3-Large with pyramid: the only Faster R-CNN of torch with IGO's 19 M; IGO does not name its trunk",
    ),
    Entry(
        name="mask-rcnn", module="vision.mask_rcnn", function="mask_rcnn", batch=2, family="detection",
        parameters=44_401_393, published=44_401_393, within=0.0,
        source="torch's model table: 44,401,393; He et al. 2017, two images per device",
        note="ResNet-50 with pyramid; normalisation constants not counted, 222,400 weights frozen",
    ),
    Entry(
        name="show-and-tell", module="language.show_and_tell", function="show_and_tell", batch=8, family="captioning",
        parameters=20_899_600, published=None, within=0.0,
        source="Vinyals et al. 2015, Sec. 4: 512 units",
        note="GoogLeNet encoder, 12,000 words; the paper prints neither its vocabulary nor a count",
    ),
    Entry(
        name="video-captioning", module="language.video_captioning", function="video_captioning", batch=8, family="captioning",
        parameters=171_228_638, published=None, within=0.0,
        source="Venugopalan et al. 2015: VGG-16, two LSTMs of 1000, 80 steps; MC-DLA, Sec. V-E: end to end",
        note="a step at batch 8 takes 37.3 GB: 35.2 GB kept for backward, 3 x 0.68 GB weights, gradients, momentum",
    ),
)

# Batches: IGO trains with 4 on its small and 8 on its large accelerator (Sec. 6.1), MC-DLA with 512 (Sec. IV); `gnmt` and
# `transformer-324m` take what yields the products of SIGMA's suite; `snli` is the PyTorch example's, the rest are ours.
LANGUAGE: tuple[Entry, ...] = (
    Entry(
        name="bert-tiny", module="language.bert", function="bert_tiny", batch=4, family="language",
        parameters=4_433_468, published=4.4e6, within=0.012,
        source="Turc et al. 2019: 4.4 M",
        note="with pre-training heads; IGO's Table 4 prints 14 M, which is tinybert-4",
    ),
    Entry(
        name="tinybert-4", module="language.bert", function="tinybert_4", batch=4, family="language",
        parameters=14_479_676, published=14.5e6, within=0.004,
        source="Jiao et al. 2020: 14.5 M",
        note="with pre-training heads",
    ),
    Entry(
        name="bert-base", module="language.bert", function="bert_base", batch=8, family="language",
        parameters=110_106_428, published=110e6, within=0.005,
        source="Devlin et al. 2019, Sec. 3: 110 M",
        note="with pre-training heads (0.6 M); the output matrix is tied",
    ),
    Entry(
        name="bert-large", module="language.bert", function="bert_large", batch=8, family="language",
        parameters=336_226_108, published=340e6, within=0.015,
        source="Devlin et al. 2019, Sec. 3: 340 M; IGO, Table 4",
        note="encoder 334.1 M, pooler and pre-training heads 2.1 M; printed rounded to ten million",
    ),
    Entry(
        name="t5-small", module="language.t5", function="t5_small", batch=4, family="language",
        parameters=60_506_624, published=60e6, within=0.009,
        source="Raffel et al. 2020, Sec. 3.7: 60 M; IGO, Table 4",
        note="one matrix for both embeddings and the output, counted once",
    ),
    Entry(
        name="t5-large", module="language.t5", function="t5_large", batch=8, family="language",
        parameters=737_668_096, published=770e6, within=0.045,
        source="Raffel et al. 2020, Sec. 3.7: 770 M; IGO, Table 4",
        note="770 M counts the shared matrix (32,899,072) twice: 770.6 M; the model has it once",
    ),
    Entry(
        name="transformer-324m", module="language.transformer_lm", function="transformer_324m", batch=1, family="language",
        parameters=322_387_968, published=324e6, within=0.005,
        source="SIGMA, Sec. II: 324 M",
        note="widths from SIGMA's suite (31999-1024-84, 84-1024-4096); 23 layers are the nearest whole depth",
    ),
    Entry(
        name="gpt2-small", module="language.gpt", function="gpt2_small", batch=8, family="language",
        parameters=124_439_808, published=124e6, within=0.004,
        source="Radford et al. 2019, released code: 124 M",
        note="the paper's Table 2 prints 117 M, which its authors corrected",
    ),
    Entry(
        name="gpt-26b", module="language.gpt", function="gpt_26b", batch=8, family="language",
        parameters=26_193_321_984, published=26e9, within=0.01,
        source="size of the capture benchmark: about 26 B",
        note="no published model; for the meta device only",
    ),
    Entry(
        name="gnmt", module="language.gnmt", function="gnmt", batch=32, family="language",
        parameters=210_916_352, published=210e6, within=0.005,
        source="SIGMA, Sec. II: about 210 M, 8 layers",
        note="four encoder and four decoder layers; vocabulary from SIGMA's suite (1632-36548-1024)",
    ),
    Entry(
        name="snli", module="language.snli", function="snli", batch=128, family="language",
        parameters=10_980_103, published=None, within=0.0,
        source="TensorDash, Sec. IV-A: two projections, two LSTMs, four classifier layers",
        note="3,702,700 of them are frozen word vectors",
    ),
    Entry(
        name="gcn", module="language.gcn", function="gcn", batch=32, family="language",
        parameters=173_806_896, published=None, within=0.0,
        source="Dauphin et al. 2017, Table 1 (GCNN-14); TensorDash, Sec. IV-D: WikiText-2",
        note="a plain output layer over 33,278 words instead of the adaptive softmax",
    ),
    Entry(
        name="rnn-gemv", module="language.deepbench", function="rnn_gemv", batch=512, family="recurrent",
        parameters=6_198_720, published=None, within=0.0,
        source="MC-DLA, Table III: 50 steps; assumed: hidden 1760, DeepBench's smallest with as many",
    ),
    Entry(
        name="lstm-1", module="language.deepbench", function="lstm_1", batch=512, family="recurrent",
        parameters=2_101_248, published=None, within=0.0,
        source="MC-DLA, Table III: 25 steps; assumed: hidden 512, DeepBench's smallest with as many",
    ),
    Entry(
        name="lstm-2", module="language.deepbench", function="lstm_2", batch=512, family="recurrent",
        parameters=8_396_800, published=None, within=0.0,
        source="MC-DLA, Table III: 25 steps; assumed: hidden 1024, DeepBench's next to smallest with as many",
    ),
    Entry(
        name="gru", module="language.deepbench", function="gru", batch=512, family="recurrent",
        parameters=14_164_992, published=None, within=0.0,
        source="MC-DLA, Table III: 187 steps; assumed: hidden 1536, DeepBench's smallest with as many",
    ),
)

# Batches: He et al. train `ncf` with 256; 2048 is that of SIGMA's suite and of MLPerf's DLRM; PIM-Opt gives each DPU 8 samples.
RECOMMENDATION: tuple[Entry, ...] = (
    Entry(
        name="ncf", module="recommendation.ncf", function="ncf", batch=256, family="recommendation",
        parameters=6_612_241, published=None, within=0.0,
        source="TensorDash, Sec. IV-A: four fully connected layers, MovieLens 20M; widths of He et al. 2017",
    ),
    Entry(
        name="ncf-sigma", module="recommendation.ncf", function="ncf_sigma", batch=2048, family="recommendation",
        parameters=31_832_577, published=None, within=0.0,
        source="SIGMA's suite: 2048-1-128, 256-256-2048; MLPerf v0.5",
    ),
    Entry(
        name="ncf-3b", module="recommendation.ncf", function="ncf_3b", batch=2048, family="recommendation",
        parameters=2_951_493_441, published=3e9, within=0.02,
        source="IGO, Table 4: 3 B",
        note="ncf-sigma five times as wide on MLPerf's expanded MovieLens; table gradients are dense",
    ),
    Entry(
        name="dlrm", module="recommendation.dlrm", function="dlrm", batch=2048, family="recommendation",
        parameters=24_036_595_969, published=25e9, within=0.04,
        source="IGO, Table 4: 25 B",
        note="MLPerf's tables (Criteo Terabyte, 40 M rows at most, width 128) hold 24.0 B; table gradients are dense",
    ),
    Entry(
        name="linear", module="recommendation.linear", function="linear", batch=8, family="linear",
        parameters=4_096, published=4096.0, within=0.0,
        source="PIM-Opt: 4096 features, 16 KiB message",
        note="no bias, as the message has room for none",
    ),
)
# fmt: on

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*VISION, *LANGUAGE, *RECOMMENDATION)}
