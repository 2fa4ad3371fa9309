"""Drafters, and the draft that passes from a drafter to a verifier."""

from specsamp.drafting.draft import Draft, Law, TokenTree
from specsamp.drafting.drafter import Drafter
from specsamp.drafting.empty import Empty
from specsamp.drafting.features import DraftModule
from specsamp.drafting.language_model import (
  LanguageModelDrafter,
  model_drafter,
)
from specsamp.drafting.modules import trained_drafter

__all__ = [
  'Draft',
  'DraftModule',
  'Drafter',
  'Empty',
  'LanguageModelDrafter',
  'Law',
  'TokenTree',
  'model_drafter',
  'trained_drafter',
]
