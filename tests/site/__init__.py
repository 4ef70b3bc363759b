"""The documents as a site: `make site` builds it into build/site/html, for a disk or a server.

The pages lie as the repository's files do, so that every link of a document is a link of the site.
What can be printed is not written: command pages are `--help`, the reference is docstrings and JSON
Schemas, and a source file that a page names is a page.
"""
