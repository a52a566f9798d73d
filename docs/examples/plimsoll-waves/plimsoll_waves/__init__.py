"""Recipes that read the frequency of a noisy wave: the example of docs/your-own.md, "A package of recipes"."""
