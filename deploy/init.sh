#!/bin/sh
# Runs once before the servers of compose.yaml, as root, and ends. It may run any number of times.
#
# A server refuses to listen on 0.0.0.0 before there is a token (AUTHN_REQUIRED), and workers need one of their own.
# Each secret is put in a volume of its own, in a file of mode 600 that belongs to the image's user:
#
#   store/pgpass   the password of Postgres; servers see it, workers do not
#   worker/token   a token with the scope `steps`; workers see it
#   admin/token    the first token, with the role Admin; nobody sees it but this service
#
# Root, because a secret from a file keeps the owner and the mode that it has on the host.
set -eu
umask 077

secret=${POSTGRES_PASSWORD_FILE:-/run/secrets/postgres_password}
home=${RUNWRIGHT_INIT_HOME:-/run/runwright}
owner=${RUNWRIGHT_INIT_OWNER:-10001:10001}

keep() { # NAME TEXT: the file is there with all of the text, or not at all
  printf '%s\n' "$2" > "$home/$1.new"
  chmod 600 "$home/$1.new"
  chown "$owner" "$home/$1.new"
  mv -f "$home/$1.new" "$home/$1"
}

password=$(cat "$secret")
case $password in
  '' | *[!A-Za-z0-9._~-]*)
    echo "Write the password of Postgres with letters, digits and . _ ~ - only (openssl rand -hex 24 makes one)." >&2
    exit 2 ;;
esac
keep store/pgpass "*:*:*:*:$password"
export PGPASSFILE="$home/store/pgpass"

tokens=$(runwright token list --json)
if [ "$tokens" = "[]" ]; then
  # Were we to die between these two lines, the token would be lost, not guessable: make another by hand.
  token=$(runwright token create admin --role Admin)
  keep admin/token "$token"
fi
if [ "$tokens" = "[]" ] || [ ! -s "$home/worker/token" ]; then
  token=$(runwright token create workers --scope steps)
  keep worker/token "$token"
fi
