#!/bin/bash
mkdir -p /home/user/archive
gzip -c /home/user/logs/old.log >/home/user/archive/old.log.gz
rm /home/user/logs/old.log
: >/home/user/logs/app.log
