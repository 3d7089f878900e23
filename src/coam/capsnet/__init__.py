"""CAPSNet with co-attention, the paper's second experiment: network, losses, data, training, evaluation."""
