"""Makes what people install: packages, tarballs, the wheelhouse, the image, a release."""
