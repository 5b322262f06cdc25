"""The site's settings: ``make docs`` writes it to docs/_build/html. A warning is an error, a link to nowhere too."""

from __future__ import annotations

import ropescale

project = "ropescale"
author = "The ropescale authors"
copyright = author
version = release = ropescale.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text = "$ "  # of a console the commands alone are copied
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"ropescale {release}"
html_copy_source = False

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]
nb_execution_mode = "off"  # the notebook holds what it showed; a test runs it

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
