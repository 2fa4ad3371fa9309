"""Drafters, and the draft that passes from a drafter to a verifier."""

from specsamp.drafting.adaptive import adaptive_drafter
from specsamp.drafting.adaptive_tree import adaptive_tree_drafter
from specsamp.drafting.draft import Draft, DynamicTree, Law, TokenTree
from specsamp.drafting.drafter import Drafter, NoDrafter
from specsamp.drafting.features import DraftModule
from specsamp.drafting.language_model import (
  LanguageModelDrafter,
  model_drafter,
)
from specsamp.drafting.lookahead import lookahead_drafter
from specsamp.drafting.ngram import ngram_drafter
from specsamp.drafting.ngram_or_model import ngram_or_model
from specsamp.drafting.trained import trained_drafter

__all__ = [
  'Draft',
  'DraftModule',
  'Drafter',
  'DynamicTree',
  'NoDrafter',
  'LanguageModelDrafter',
  'Law',
  'TokenTree',
  'adaptive_drafter',
  'adaptive_tree_drafter',
  'lookahead_drafter',
  'model_drafter',
  'ngram_drafter',
  'ngram_or_model',
  'trained_drafter',
]
