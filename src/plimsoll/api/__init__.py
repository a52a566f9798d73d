"""What `import plimsoll` and the command line call: plan, train, compare, ladder, loader, report."""
