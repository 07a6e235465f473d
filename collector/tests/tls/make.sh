#!/bin/sh
# Makes the certificates of the TLS tests: an authority and two leaves for localhost, valid for a
# hundred years, the second a day less, and a leaf of version 1. The keys are public like this script; nothing but tests trusts them.
set -eu
cd "$(dirname "$0")"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 \
    -subj "/CN=epwatch test authority" -addext "basicConstraints=critical,CA:TRUE" \
    -keyout ca.key -out ca.pem
days=36500
for leaf in one two; do
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$leaf" \
        -keyout "$leaf.key" -out "$leaf.csr"
    printf 'subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n' >"$leaf.ext"
    openssl x509 -req -in "$leaf.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
        -extfile "$leaf.ext" -out "$leaf.pem"
    rm "$leaf.csr" "$leaf.ext"
    days=$((days - 1))
done
# Version 1, as openssl makes it without extensions.
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=localhost" \
    -keyout version-1.key -out version-1.csr
openssl x509 -req -in version-1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -out version-1.pem
rm version-1.csr ca.key ca.srl
