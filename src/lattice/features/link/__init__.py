"""Link: every replica reaches every node, and no node opens a port.

Data path    An agent dials replica B and holds one link: pings go up, tickets go down.
             A caller of replica A gets a ticket to the agent through B. The agent dials A, so
             a node stream has one hop. A stream is a pipe between its two ends. The replica
             relays its frames and keeps none, so nothing is lost when the replica dies.
Bounds       A probe every 5 s; 15 s of silence end a link. At most 64 messages wait on a link. A
             pipe buffers 2 MiB at each end. A session waits 60 s for its caller to come back.
When down    When a replica dies, its agents dial another within seconds and its lease removes its
             routes. Without the state store links stay open and a replica reaches the nodes linked
             to it. An agent with an unpublished link looks for a replica that can publish it. If a
             node can't be reached, the answer says so and since when; it never hangs.
Promises     AUTH-8, AUTH-9, and the table of times.
"""
