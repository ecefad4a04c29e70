"""Networks of images.

- imagenet: what all classifiers share; alexnet, vgg, googlenet, resnet, squeezenet, mobilenet: the classifiers
- boxes, regions, pyramid: what the two-stage detectors share; faster_rcnn, faster_rcnn_mobilenet, mask_rcnn: the detectors
- yolov2, yolov5: one-stage detectors
"""
