#!/bin/bash
sed -i -e 's/^port.*/port = 8025/' -e 's/^retries.*/retries = 3/' -e 's|^log.*|log = /var/log/post.log|' /etc/service/post.conf
