#!/bin/sh
# Add users to the broker on this machine, where guest may log in: add-users.sh FILE DIRECTORY
# FILE has a user a line, with its tags behind it; DIRECTORY has the password of each in a file of its name.
set -eu
users=$1 passwords=$2

for _ in $(seq 300); do
    if headrace users list >/dev/null 2>&1; then
        while read -r name tags; do
            words=""
            for tag in $tags; do words="$words --tag $tag"; done
            # shellcheck disable=SC2086  # the words are several
            headrace users add "$name" $words <"$passwords/$name" >/dev/null
            headrace permissions set "$name" >/dev/null
        done <"$users"
        exit 0
    fi
    sleep 1
done
echo "headrace: no broker answered within five minutes, so no users were added" >&2
exit 1
