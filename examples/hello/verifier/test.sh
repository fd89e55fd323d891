#!/bin/bash
# 1 when greeting.txt is a plain file that holds exactly the line.
reward=0
if [ -f greeting.txt ] && [ ! -L greeting.txt ] && [ "$(head -c 64 greeting.txt)" = "hello, world" ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
