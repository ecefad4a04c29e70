"""The zoo's table: every model by name, where it is built and how many parameters its publication states.

Kept free of torch, so that `trainyard list` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One row. `parameters` is what our model has, exactly; `published` what the publication prints, `within` its rounding."""

    name: str
    module: str
    batch: int
    family: str
    parameters: int
    published: float | None
    within: float
    source: str
    note: str = ""

    @property
    def function(self) -> str:
        """The function of the module that returns the Recipe."""
        return self.name.replace("-", "_")


# fmt: off
# Batches: 8 is IGO's on its large accelerator and 4 on its small one (Sec. 6.1); MC-DLA trains its networks with 512
# (Sec. IV). Detectors take what their papers give one device. `googlenet` and `mobilenet` follow their publications; the
# 62 M and 13 M of IGO's Table 4 fit no GoogLeNet and no MobileNet (they are near AlexNet's and GoogLeNet's with its side heads).
VISION: tuple[Entry, ...] = (
    #     name                     module                           batch family                 parameters       published  within
    Entry("alexnet",               "vision.alexnet",                   8, "classification",     61_100_840,     61_100_840,    0.0,
          source="torch's model table: 61,100,840", note="one tower (Krizhevsky 2014); the two towers of NIPS 2012 print 60 M"),
    Entry("vgg16",                 "vision.vgg",                       8, "classification",    138_357_544,          138e6,  0.004,
          source="Simonyan and Zisserman 2015, Table 2: 138 M (D)"),
    Entry("vgg19",                 "vision.vgg",                       8, "classification",    143_667_240,          144e6,  0.004,
          source="Simonyan and Zisserman 2015, Table 2: 144 M (E)", note="VGG-E of MC-DLA's Table III"),
    Entry("googlenet",             "vision.googlenet",                 8, "classification",      6_998_552,  6797.7 * 1024,  0.006,
          source="Szegedy et al. 2015, Table 1: its rows sum to 6797.7 K (of 1024), biases left out",
          note="without side classifiers; conv1 is printed as 2.7 K and has 9.2 K; IGO's Table 4 prints 62 M"),
    Entry("googlenet-aux",         "vision.googlenet",                 8, "classification",     13_378_280, 53_533_754 / 4, 0.0005,
          source="Caffe's released bvlc_googlenet: 53,533,754 bytes of 4-byte weights",
          note="with both side classifiers, as it was trained"),
    Entry("resnet18",              "vision.resnet",                    8, "classification",     11_689_512,     11_689_512,    0.0,
          source="torch's model table: 11,689,512"),
    Entry("resnet34",              "vision.resnet",                    8, "classification",     21_797_672,     21_797_672,    0.0,
          source="torch's model table: 21,797,672", note="the ResNet of MC-DLA's Table III"),
    Entry("resnet50",              "vision.resnet",                    8, "classification",     25_557_032,     25_557_032,    0.0,
          source="torch's model table: 25,557,032; IGO, Table 4: 25 M", note="stride in the 3 x 3 convolutions"),
    Entry("squeezenet",            "vision.squeezenet",                8, "classification",      1_248_424,      1_248_424,    0.0,
          source="Iandola et al. 2016, Table 1: 1,248,424", note="version 1.0, before pruning"),
    Entry("mobilenet",             "vision.mobilenet",                 8, "classification",      4_231_976,          4.2e6,  0.012,
          source="Howard et al. 2017, Table 4: 4.2 M", note="version 1, width 1; IGO's Table 4 prints 13 M"),
    Entry("yolov2-tiny",           "vision.yolov2",                    4, "detection",          11_232_057,           11e6,  0.046,
          source="IGO, Table 4: 11 M", note="COCO head (80 classes, 5 anchors); the VOC network has 15.9 M"),
    Entry("yolov5l",               "vision.yolov5",                    8, "detection",          46_563_709,         46.5e6,  0.002,
          source="Ultralytics' table, release 6: 46.5 M; IGO, Table 4: 47 M"),
    Entry("faster-rcnn",           "vision.faster_rcnn",               1, "detection",          29_137_091,           None,    0.0,
          source="Ren et al. 2015, one image per device; He et al. 2016, App. A",
          note="ResNet-50 C4; normalisation constants not counted, 222,400 weights frozen; no printed count for this head"),
    Entry("faster-rcnn-mobilenet", "vision.faster_rcnn_mobilenet",     8, "detection",          19_386_354,     19_386_354,    0.0,
          source="torch's model table: 19,386,354; IGO, Table 4: 19 M",
          note="MobileNetV3-Large with pyramid: the only Faster R-CNN of torch with IGO's 19 M; IGO does not name its trunk"),
    Entry("mask-rcnn",             "vision.mask_rcnn",                 2, "detection",          44_401_393,     44_401_393,    0.0,
          source="torch's model table: 44,401,393; He et al. 2017, two images per device",
          note="ResNet-50 with pyramid; normalisation constants not counted, 222,400 weights frozen"),
    Entry("show-and-tell",         "language.show_and_tell",           8, "captioning",         20_899_600,           None,    0.0,
          source="Vinyals et al. 2015, Sec. 4: 512 units",
          note="GoogLeNet encoder, 12,000 words; the paper prints neither its vocabulary nor a count"),
    Entry("video-captioning",      "language.video_captioning",        8, "captioning",        171_228_638,           None,    0.0,
          source="Venugopalan et al. 2015: VGG-16, two LSTMs of 1000, 80 steps; MC-DLA, Sec. V-E: end to end",
          note="a step at batch 8 takes 37.3 GB: 35.2 GB kept for backward, 3 x 0.68 GB weights, gradients, momentum"),
)

# Batches: IGO trains with 4 on its small and 8 on its large accelerator (Sec. 6.1), MC-DLA with 512 (Sec. IV); `gnmt` and
# `transformer-324m` take what yields the products of SIGMA's suite; `snli` is the PyTorch example's, the rest are ours.
LANGUAGE: tuple[Entry, ...] = (
    #     name                     module                           batch family                 parameters       published  within
    Entry("bert-tiny",             "language.bert",                    4, "language",            4_433_468,          4.4e6,  0.012,
          source="Turc et al. 2019: 4.4 M", note="with pre-training heads; IGO's Table 4 prints 14 M, which is tinybert-4"),
    Entry("tinybert-4",            "language.bert",                    4, "language",           14_479_676,         14.5e6,  0.004,
          source="Jiao et al. 2020: 14.5 M", note="with pre-training heads"),
    Entry("bert-base",             "language.bert",                    8, "language",          110_106_428,          110e6,  0.005,
          source="Devlin et al. 2019, Sec. 3: 110 M", note="with pre-training heads (0.6 M); the output matrix is tied"),
    Entry("bert-large",            "language.bert",                    8, "language",          336_226_108,          340e6,  0.015,
          source="Devlin et al. 2019, Sec. 3: 340 M; IGO, Table 4",
          note="encoder 334.1 M, pooler and pre-training heads 2.1 M; printed rounded to ten million"),
    Entry("t5-small",              "language.t5",                      4, "language",           60_506_624,           60e6,  0.009,
          source="Raffel et al. 2020, Sec. 3.7: 60 M; IGO, Table 4",
          note="one matrix for both embeddings and the output, counted once"),
    Entry("t5-large",              "language.t5",                      8, "language",          737_668_096,          770e6,  0.045,
          source="Raffel et al. 2020, Sec. 3.7: 770 M; IGO, Table 4",
          note="770 M counts the shared matrix (32,899,072) twice: 770.6 M; the model has it once"),
    Entry("transformer-324m",      "language.transformer_lm",          1, "language",          322_387_968,          324e6,  0.005,
          source="SIGMA, Sec. II: 324 M",
          note="widths from SIGMA's suite (31999-1024-84, 84-1024-4096); 23 layers are the nearest whole depth"),
    Entry("gpt2-small",            "language.gpt",                     8, "language",          124_439_808,          124e6,  0.004,
          source="Radford et al. 2019, released code: 124 M", note="the paper's Table 2 prints 117 M, which its authors corrected"),
    Entry("gpt-26b",               "language.gpt",                     8, "language",       26_193_321_984,           26e9,   0.01,
          source="size of the capture benchmark: about 26 B", note="no published model; for the meta device only"),
    Entry("mixtral-8x7b",          "language.mixtral",                 8, "language",       46_702_792_704,           47e9,  0.007,
          source="Jiang et al. 2024, Sec. 1: 47 B, 13 B of them for each token",
          note="8 experts, 2 for each token, in grouped products; bf16; 4096 tokens"),
    Entry("gnmt",                  "language.gnmt",                   32, "language",          210_916_352,          210e6,  0.005,
          source="SIGMA, Sec. II: about 210 M, 8 layers",
          note="four encoder and four decoder layers; vocabulary from SIGMA's suite (1632-36548-1024)"),
    Entry("snli",                  "language.snli",                  128, "language",           10_980_103,           None,    0.0,
          source="TensorDash, Sec. IV-A: two projections, two LSTMs, four classifier layers",
          note="3,702,700 of them are frozen word vectors"),
    Entry("gcn",                   "language.gcn",                    32, "language",          173_806_896,           None,    0.0,
          source="Dauphin et al. 2017, Table 1 (GCNN-14); TensorDash, Sec. IV-D: WikiText-2",
          note="a plain output layer over 33,278 words instead of the adaptive softmax"),
    Entry("rnn-gemv",              "language.deepbench",             512, "recurrent",           3_099_360,           None,    0.0,
          source="MC-DLA, Table III: 50 steps; assumed: hidden 1760, DeepBench's smallest with as many; no input product"),
    Entry("lstm-1",                "language.deepbench",             512, "recurrent",           1_050_624,           None,    0.0,
          source="MC-DLA, Table III: 25 steps; assumed: hidden 512, DeepBench's smallest with as many; no input product"),
    Entry("lstm-2",                "language.deepbench",             512, "recurrent",          67_125_248,           None,    0.0,
          source="MC-DLA, Table III: 25 steps, language modelling: DeepBench's only one is 4096 wide; no input product"),
    Entry("gru",                   "language.deepbench",             512, "recurrent",           7_082_496,           None,    0.0,
          source="MC-DLA, Table III: 187 steps; assumed: hidden 1536, DeepBench's smallest with as many; no input product"),
    Entry("lstm-1024",             "language.deepbench",             512, "recurrent",           8_396_800,           None,    0.0,
          source="torch's LSTM with its input product, 25 steps of DeepBench's translation layer of 1024"),
)

# Batches: He et al. train `ncf` with 256; 2048 is that of SIGMA's suite and of MLPerf's DLRM; PIM-Opt gives each DPU 8 samples.
RECOMMENDATION: tuple[Entry, ...] = (
    #     name                     module                           batch family                 parameters       published  within
    Entry("ncf",                   "recommendation.ncf",             256, "recommendation",      6_612_241,           None,    0.0,
          source="TensorDash, Sec. IV-A: four fully connected layers, MovieLens 20M; widths of He et al. 2017"),
    Entry("ncf-sigma",             "recommendation.ncf",            2048, "recommendation",     31_832_577,           None,    0.0,
          source="SIGMA's suite: 2048-1-128, 256-256-2048; MLPerf v0.5"),
    Entry("ncf-3b",                "recommendation.ncf",            2048, "recommendation",  2_951_493_441,            3e9,   0.02,
          source="IGO, Table 4: 3 B",
          note="ncf-sigma five times as wide on MLPerf's expanded MovieLens; table gradients are dense"),
    Entry("dlrm",                  "recommendation.dlrm",           2048, "recommendation", 24_036_595_969,           25e9,   0.04,
          source="IGO, Table 4: 25 B",
          note="MLPerf's tables (Criteo Terabyte, 40 M rows at most, width 128) hold 24.0 B; table gradients are dense"),
    Entry("linear",                "recommendation.linear",            8, "linear",                  4_096,         4096.0,    0.0,
          source="PIM-Opt: 4096 features, 16 KiB message", note="no bias, as the message has room for none"),
)
# fmt: on

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*VISION, *LANGUAGE, *RECOMMENDATION)}
