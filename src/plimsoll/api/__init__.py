"""Functions behind `import plimsoll` and the command line: plan, train, compare, ladder, loader, report."""
