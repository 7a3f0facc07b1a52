#!/bin/bash
printf '%s\n' '#!/bin/bash' 'echo "Hello, ${1:-stranger}!"' >/app/greet.sh
chmod +x /app/greet.sh
