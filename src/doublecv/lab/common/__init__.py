"""Parts that every program of the laboratory uses: errors, files, style, signals."""
