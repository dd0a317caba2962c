"""Charts for notebooks and documents: plotly figures, and PNG or SVG files without a browser."""
