#!/bin/sh
# Runs once, when the database is made: the server's own role owns its database and is no superuser.
set -eu
password=$(cat /run/spikeguard/database_password)
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<SQL
CREATE ROLE spikeguard LOGIN PASSWORD '$password';
CREATE DATABASE spikeguard OWNER spikeguard;
REVOKE CONNECT ON DATABASE spikeguard FROM PUBLIC;
SQL
