"""One file per benchmark: layout, protocol, loader, figures."""
