(create_table (object_reference name: (identifier) @name)) @type
(create_view (object_reference name: (identifier) @name)) @type
(create_function (object_reference name: (identifier) @name)) @function
(comment) @attach
