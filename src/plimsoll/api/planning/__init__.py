"""A question and a place become a plan: `find_plan`, and what is made of it."""
