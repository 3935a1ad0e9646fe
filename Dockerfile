# One image for every service of Fairlane: its entry point is the command `fairlane`.
#
#   docker build -t fairlane:0.1.0 .
#
# Every package comes from requirements/ with its hash; nothing is compiled here.

FROM python:3.11-slim-bookworm AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# --- The wheel: changes with the code.
FROM base AS wheel
WORKDIR /source
COPY requirements/build.txt requirements/build.txt
RUN pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY accounting accounting
COPY adapters adapters
COPY fairlane fairlane
COPY producers producers
COPY scheduler scheduler
COPY schemas schemas
COPY simulation simulation
COPY workers workers
RUN python -m hatchling build -t wheel -d /wheel

# --- The environment: its first layer changes with the dependencies alone.
FROM base AS environment
RUN python -m venv /opt/fairlane
ENV PATH=/opt/fairlane/bin:$PATH
COPY requirements/container.txt requirements/container.txt
RUN pip install --require-hashes -r requirements/container.txt
COPY --from=wheel /wheel /wheel
RUN pip install --no-deps --no-index /wheel/*.whl

# --- What runs: no build tool, no source, no root.
FROM base AS run
RUN useradd --system --uid 10001 --home-dir /var/lib/fairlane --create-home fairlane
COPY --from=environment /opt/fairlane /opt/fairlane
ENV PATH=/opt/fairlane/bin:$PATH
USER 10001
WORKDIR /var/lib/fairlane
EXPOSE 8080
# Each service finishes what it has under way, within the grace of docker-compose.yml.
STOPSIGNAL SIGTERM
ENTRYPOINT ["fairlane"]
CMD ["--help"]
