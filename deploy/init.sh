#!/bin/sh
# Runs before the servers of compose.yaml, as root, and exits. It is safe to run it again.
#
# A server refuses to listen on 0.0.0.0 before there is a token (AUTHN_REQUIRED), and workers need one of their own.
# Each secret is written to its own volume, to a file of mode 600 that belongs to the image's user:
#
#   store/pgpass   the password of Postgres; servers see it, workers do not
#   worker/token   a token with the scope `steps`; workers see it
#   admin/token    the first token, with the role Admin; only this service sees it
#
# It runs as root, because a secret from a file has the owner and the mode of the file on the host.
set -eu
umask 077

secret=${POSTGRES_PASSWORD_FILE:-/run/secrets/postgres_password}
home=${RUNWRIGHT_INIT_HOME:-/run/runwright}
owner=${RUNWRIGHT_INIT_OWNER:-10001:10001}

write_secret() { # NAME TEXT: write the file completely or not at all
  printf '%s\n' "$2" > "$home/$1.new"
  chmod 600 "$home/$1.new"
  chown "$owner" "$home/$1.new"
  mv -f "$home/$1.new" "$home/$1"
}

password=$(cat "$secret")
case $password in
  '' | *[!A-Za-z0-9._~-]*)
    echo "The Postgres password must contain only letters, digits and . _ ~ - (create one with: openssl rand -hex 24)." >&2
    exit 2 ;;
esac
write_secret store/pgpass "*:*:*:*:$password"
export PGPASSFILE="$home/store/pgpass"

tokens=$(runwright token list --json)
if [ "$tokens" = "[]" ]; then
  # A crash between these two lines loses the token, but does not disclose it: create another one by hand.
  token=$(runwright token create admin --role Admin)
  write_secret admin/token "$token"
fi
if [ "$tokens" = "[]" ] || [ ! -s "$home/worker/token" ]; then
  name=workers # names are unique: the token that was lost keeps its name until it is revoked
  [ "$tokens" = "[]" ] || name=workers-$(date -u +%Y%m%dT%H%M%SZ)
  token=$(runwright token create "$name" --scope steps)
  write_secret worker/token "$token"
fi
