"""Pages in headless Chromium: what is drawn, what a hand on mouse or keyboard can do."""
