# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
# For build servers. It publishes the image for every processor of the plan, with a list of what is in it (SBOM) and a
# record of how it was made (provenance), from the project's folder:
#   docker buildx create --use
#   docker buildx bake --file .devcontainer/docker-bake.hcl --push --set "*.tags=registry.example.org/quickstart:1"
# Docker's own builder makes neither without the containerd image store, and refuses; so the Compose file asks for
# none, and this asks for both. Without them: --sbom=false --provenance=false. With SOURCE_DATE_EPOCH set, the image
# carries that date in place of today's.

target "default" {
  context   = ".devcontainer"
  platforms = ["linux/amd64"]
  # The whole record names every build argument: none of them is a secret.
  attest = ["type=sbom", "type=provenance,mode=max"]
}
