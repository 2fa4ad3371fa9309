"""Drafters, and the draft that passes from a drafter to a verifier."""

from specsamp.drafting.draft import Draft, Law, TokenTree

__all__ = ['Draft', 'Law', 'TokenTree']
