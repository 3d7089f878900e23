"""The web app: a factory and a context that serves it. Nothing starts at import."""

from coam.app.engine import Limits
from coam.app.interface import create_app
from coam.app.server import running_app

__all__ = ["Limits", "create_app", "running_app"]
