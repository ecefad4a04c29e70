"""What each torch op is to a capture.

- registry: a handler's argument and result, and the handlers that users register
- handlers: the rule of each op; products: matrix products, convolutions, attention; collectives: exchanges between ranks;
  linalg: factorisations and decompositions; detection: torchvision's ops on boxes and regions
- tables: names of ops, where torch itself does not say what they are
- shape_rules: shapes of results that torch cannot compute on the meta device
"""
