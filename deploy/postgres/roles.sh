#!/bin/sh
# Makes the database and its two roles; it may run again at any time. spikeguard_owner owns
# everything, spikeguard, the server's own, works with rows.
set -eu
secret() { cat "${SECRETS:-/run/spikeguard}/$1"; }
PGPASSWORD=$(secret superuser_password)
export PGPASSWORD
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username postgres --dbname postgres <<SQL
SELECT format('CREATE ROLE %I LOGIN', name) FROM unnest(ARRAY['spikeguard', 'spikeguard_owner']) name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE spikeguard PASSWORD '$(secret database_password)';
ALTER ROLE spikeguard_owner PASSWORD '$(secret owner_password)';
SELECT 'CREATE DATABASE spikeguard'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'spikeguard') \gexec
ALTER DATABASE spikeguard OWNER TO spikeguard_owner;
REVOKE CONNECT ON DATABASE spikeguard FROM PUBLIC;
GRANT CONNECT ON DATABASE spikeguard TO spikeguard;
SQL
