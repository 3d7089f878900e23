"""Registration: one image laid onto another, across sensors and seasons, with how sure it is."""

from coam.registration.pair import Limits, RegisterOptions, register
from coam.registration.result import Registration, RegistrationRefused

__all__ = ["Limits", "RegisterOptions", "Registration", "RegistrationRefused", "register"]
