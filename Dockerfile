# callboard serve, without root and on a root file system that is read-only. In a clone:
#
#   docker build --tag callboard .
#   docker run --read-only --publish 127.0.0.1:8330:8330 --volume callboard:/var/lib/callboard --volume work:/workspace \
#       --env CALLBOARD_TOKEN --env CALLBOARD_MODEL=openai/gpt-6.1-sol --env OPENAI_API_KEY callboard
#
# Build arguments: EXTRAS of callboard, such as "daemon,postgres,mcp", and PACKAGES of Debian for the programs that tools
# run, such as "git ripgrep". The image has no package manager.
FROM docker.io/library/debian:trixie-slim AS python
ARG PACKAGES=""
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3.13 ${PACKAGES} \
    && useradd --uid 10001 --home-dir /var/lib/callboard --shell /usr/sbin/nologin callboard \
    && install --directory --owner callboard --group callboard --mode 700 /var/lib/callboard \
    && install --directory --owner callboard --group callboard /workspace

FROM python AS installed
ARG EXTRAS=daemon
RUN apt-get install --yes --no-install-recommends binutils python3.13-venv
COPY . /source
RUN python3.13 -m venv /opt/pip && python3.13 -m venv --without-pip /opt/callboard \
    && /opt/pip/bin/pip --python /opt/callboard/bin/python install --no-cache-dir "/source[${EXTRAS}]"
# What a daemon does not use: symbols for debuggers, the tests and programs of apsw, bytecode of what only `chat` loads.
RUN find /opt/callboard -name "*.so*" -type f -exec strip --strip-unneeded {} + \
    && cd /opt/callboard/lib/python3.13/site-packages && rm -r apsw/tests apsw/sqlite_extra_binaries/*sqlite3* \
    && find pygments wcwidth prompt_toolkit rich -name "*.pyc" -delete

FROM python AS trimmed
# A quarter of Debian is there to install more of it, or to change users and passwords.
RUN dpkg --purge --force-depends --force-remove-essential \
        apt libapt-pkg7.0 libdb5.3t64 libgmp10 libhogweed6t64 libnettle8t64 openssl passwd perl-base sqv \
    && rm -rf /usr/lib/*/gconv /usr/lib/python3.13/pydoc_data /var/cache/* /var/lib/apt /var/log/* /var/lib/dpkg/*-old

FROM scratch
COPY --from=trimmed / /
COPY --from=installed /opt/callboard /opt/callboard
ENV PATH=/opt/callboard/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/callboard \
    XDG_STATE_HOME=/var/lib \
    CALLBOARD_WORKSPACE=/workspace
# The number is what volumes know the user by, and Kubernetes (runAsNonRoot).
USER 10001:10001
WORKDIR /workspace
# Journal, tokens, staged edits and the code index; and the files that tools read and change.
VOLUME ["/var/lib/callboard", "/workspace", "/tmp"]
EXPOSE 8330
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8330/readyz', timeout=4)"]
# It drains at SIGTERM: let it have 60 s (docker stop --time 60). 0.0.0.0 answers under the names of this machine and
# those of allowed_hosts.
ENTRYPOINT ["callboard", "serve", "--host", "0.0.0.0", "--port", "8330"]
